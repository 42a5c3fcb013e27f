"""Write results into a documentation page, between a marker and `<!-- end -->`.

    python docs/generate.py docs/methods/furl.md docs/methods/fedperc.md

`<!-- results: NAME -->` takes the tables of the comparison NAME; `<!-- preferences: NAME -->` FedEmbed's tables of
fedembed-NAME and fedembed-NAME-imbalanced; `<!-- replies: NAME -->` FedNLG's tables of replies, and
`<!-- newcomers: NAME -->` its table of new speakers by number of own samples; `<!-- next-words: NAME -->` OOV
Expansion's tables; `<!-- scores: NAME -->`, `<!-- curves: NAME -->`, `<!-- by-samples: NAME -->`, `<!-- maps: NAME -->`
and `<!-- next-word-bars: NAME -->` a figure, which is written to `docs/figures`. All of them read the record
`docs/results/NAME.json`; without one, the folder `runs/NAME` of a finished comparison. The record comes first, so that
each page can be written again from the repository alone: `python docs/records.py keep NAME` brings a record up to date.

`<!-- word-frequencies: NAME -->` takes a figure and a table from the record that `experiments/word_frequencies.py`
writes, `<!-- samples: NAME -->` text generated from the runs, and `<!-- bench: NAME -->` the tables of
`runs/bench-NAME.json`. If the input is missing, the page keeps its content; an empty block gets the command to run.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from homespun.cli.workloads import tables_of
from homespun.core.settings import stored_settings
from homespun.experiments.experiment import Draw, run_folder
from homespun.experiments.results import ADDED_LATER, RESULTS_FILE, read_results
from homespun.privacy.settings import Privacy
from homespun.report.differences import (
    difference_sentences,
    difference_table,
    own_samples_table,
    personal_table,
    unadapted_table,
)
from homespun.report.few_shot import KNOWN, WITHHELD, configuration_table, user_range_table
from homespun.report.groups import assignment_table
from homespun.report.next_word_systems import systems
from homespun.report.next_word_tables import next_word_tables, samples_table
from homespun.report.reply_tables import prompt_table, reply_tables
from homespun.report.score_tables import folds_of, metric_of, seed_note, seeds_of
from homespun.report.table_model import PERPLEXITY, Column, Table, make_table, mean
from homespun.report.tables import central_tables, escape, markdown_table
from homespun.report.traffic import total_privacy_cost_text
from homespun.runs.vault import VAULT_FILE
from homespun.system.json_files import read_json
from homespun.system.method_loading import method_module

sys.path.insert(0, str(Path(__file__).parent))  # import neighbouring scripts from any working directory
import fedembed_tables
import figures
import next_word_figures
import records

RUNS, FIGURES = Path("runs"), Path("docs/figures")
NOT_RUN = "Not run yet"
PROMPTS = ("We must", "I think")  # the paper's
RUN_SETTINGS = ("cohort", "withheld", "evaluate_users", "evaluate_examples")  # that are always shown
# Run settings that are shown if they differ from this; older records lack some
USUAL = {"sampler": "shuffled", "split_by": "example", "cohort_decay": 0.0, **ADDED_LATER}
CURVE_ROUNDS = (2, 4, 6, 10, 16, 24, 40)
SAMPLING = {"max_tokens": 24, "top_p": 0.9, "seed": 0}


def is_here(name: str) -> bool:
    return records.record_file(name).exists() or (RUNS / name / RESULTS_FILE).exists()


def comparison(name: str) -> dict[str, Any]:
    """The results of a comparison, from its record if it has one."""
    return records.comparison(name) if records.record_file(name).exists() else read_results(RUNS / name)


def results_of(name: str) -> str:
    results = comparison(name)
    text = metric_of(results) == PERPLEXITY
    parts = [*language_parts(results), settings_text(results)] if text else label_parts(results)
    spent = [escape(made)] if (made := total_privacy_cost_text(results)) else []
    return "\n\n".join([*parts, *spent, provenance_text(results)])


def label_parts(results: Mapping[str, Any]) -> list[str]:
    parts = [f"**{title}**\n\n{markdown_table(table)}" for title, table in central_tables(results)]
    curves = curve_table(results)
    if curves is not None:
        parts.append(f"**{curves.caption}**\n\n{markdown_table(curves)}")
    pairs = {(one["left"], one["right"]) for one in results["similarity"]}
    if len(pairs) == 1:
        values = [one["correlation"] for one in results["similarity"]]
        pair = " and ".join(*pairs)
        shown = ", ".join(f"{value:.3f}" for value in values)
        parts.append(f"Rank correlation of the distances between users, {pair}, by seed: {shown}.")
    return parts


def curve_table(results: Mapping[str, Any]) -> Table | None:
    """The evaluation metric by round; None if the runs were not evaluated at all of these rounds."""
    metric = metric_of(results)
    runs = [run for configuration in results["configurations"].values() for run in configuration["runs"]]
    shown = sorted(set(CURVE_ROUNDS).intersection(*({entry["round"] for entry in run["curve"]} for run in runs)))
    if len(shown) < len(CURVE_ROUNDS):
        return None
    rows = []
    for configuration in results["configurations"].values():
        curves = [{entry["round"]: entry for entry in run["curve"]} for run in configuration["runs"]]
        means = [mean(curve[found]["value"] for curve in curves) for found in shown]
        rows.append([configuration["title"], *map(metric.text, means)])
    columns = [Column("Configuration"), *(Column(f"Round {found}", number=True) for found in shown)]
    return make_table(columns, rows, caption=metric.heading(f"Evaluation {metric.title} during training"))


def language_parts(results: Mapping[str, Any]) -> list[str]:
    """The FedPerC paper's tables 1 and 2, then the distribution over users, and the differences."""
    parts = []
    for number, users in enumerate((KNOWN, WITHHELD), start=1):
        reached, served = configuration_table(results, users), user_range_table(results, users)
        if reached is None or served is None:
            parts.append(f"**Table {number}, {users.title.lower()}**: not evaluated.")
            continue
        parts += [
            f"**Table {number}, {users.title.lower()}**: perplexity by number of own samples. {seed_note(results)}",
            markdown_table(reached),
            "Distribution over users, with all own samples:",
            markdown_table(served),
        ]
    differences = difference_table(results)
    if differences is not None:
        parts += [f"**{differences.caption}**", markdown_table(differences)]
        parts += [escape(sentence) for sentence in difference_sentences(results)]
    for more in (personal_table(results), unadapted_table(results), own_samples_table(results)):
        if more is not None:
            parts += [f"**{more.caption}**", markdown_table(more)]
    return parts


def settings_text(results: Mapping[str, Any]) -> str:
    """The settings of each configuration that are not the method's defaults, and the main settings of the run."""
    lines = []
    for configuration in results["configurations"].values():
        first = configuration["runs"][0]
        module = method_module(configuration["method"])
        usual = module.Settings().model_dump(mode="json")
        used = stored_settings(first["settings"])
        changed = {name: value for name, value in used.items() if usual.get(name) != value}
        run = {"rounds": f"{len(first['rounds'])} ({epochs_text(configuration['runs'])})"}
        run |= {name: first["run"][name] for name in RUN_SETTINGS}
        unusual = {name: first["run"].get(name, usual) for name, usual in USUAL.items()}
        run |= {name: value for name, value in unusual.items() if value != USUAL[name]}
        everything = {**run, **private_settings(first), **changed}
        named = ", ".join(f"{name} {value}" for name, value in everything.items() if value is not None)
        lines.append(f"- {escape(configuration['title'])}: {escape(named)}.")
    return "\n".join(["Main settings of the runs, and settings that are not the default:", "", *lines])


def epochs_text(runs: Sequence[Mapping[str, Any]]) -> str:
    """The number of epochs, as a range: runs may have different participants."""
    lengths = sorted({f"{run['curve'][-1]['epoch']:.2g}" for run in runs if run["curve"]}, key=float)
    return f"{' to '.join(dict.fromkeys([*lengths[:1], *lengths[-1:]]))} epochs" if lengths else "epochs not recorded"


def private_settings(run: Mapping[str, Any]) -> dict[str, Any]:
    """Privacy settings that are not the default, and always delta: epsilon means little without it."""
    asked = run["run"].get("privacy")
    if not asked:
        return {}
    usual = {name: field.default for name, field in Privacy.model_fields.items() if name != "delta"}
    return {
        f"privacy.{name}": value
        for name, value in asked.items()
        if name not in ("ledger", "budget") and (name not in usual or value != usual[name])
    }


def provenance_text(results: Mapping[str, Any]) -> str:
    folds = folds_of(results)
    seeds = len(seeds_of(results))
    runs = f"{seeds} {'seeds' if seeds > 1 else 'seed'}" + (f" of {folds} folds" if folds else "")
    facts = results["data"]["check"]
    return f"{facts['users']} participants, {facts['examples']} examples, {runs}; {versions_text(results)}"


def versions_text(found: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in found["versions"].items()) + "."


def samples_of(name: str) -> str | None:
    """Table 4: several users of the first configuration's first run continue the same prompts; None if the run was
    trained on another machine."""
    from homespun.report.prompt_continuations import showcase, showcase_markdown
    from homespun.runs.training import reopen

    results = comparison(name)
    key, configuration = next(iter(results["configurations"].items()))
    first = configuration["runs"][0]
    draw = Draw(first["seed"], first.get("fold"))
    place = run_folder(RUNS / name, key, draw)
    if not (place / VAULT_FILE).exists():
        return None
    with reopen(place) as run:
        samples = showcase(run, PROMPTS, **SAMPLING)
    how = ", ".join(f"{setting} {value}" for setting, value in SAMPLING.items())
    return f"{showcase_markdown(samples)}\n{escape(configuration['title'])}, {draw}; sampled with {escape(how)}."


def bench_file(name: str) -> Path:
    return RUNS / f"bench-{name}.json"


def bench_of(name: str) -> str:
    found = read_json(bench_file(name), missing=f"{bench_file(name)}: no such file")
    parts = [f"{markdown_table(made)}\n\n{escape(made.note)}" for made in tables_of(name, found)]
    return "\n\n".join([*parts, versions_text(found)])


def preferences_of(name: str) -> str:
    """FedEmbed's tables, with the paper's numbers in brackets."""
    twin = f"fedembed-{name}-imbalanced"
    balanced, imbalanced = comparison(f"fedembed-{name}"), comparison(twin) if is_here(twin) else None
    tables = {"mnist": (2, 4), "voices": (3, 5)}[name]
    parts = [
        f"**Table {tables[0]}**: macro-F1, averaged over sub-populations; the paper's value in brackets. "
        + seed_note(balanced),
        markdown_table(fedembed_tables.scores(name, balanced, imbalanced)),
        f"Gaussian: {fedembed_tables.privacy_text(balanced) or 'not run'}."
        + fedembed_tables.total_privacy_cost_text(balanced, imbalanced),
        f"Seconds per round on one core of a busy machine: {fedembed_tables.seconds_text(balanced)}.",
    ]
    if imbalanced is not None:
        for other, privacy in fedembed_tables.PRIVACY.items():
            parts += [
                f"**Table {tables[1]}, {privacy}**: macro-F1 by the sub-population's share of users, imbalanced.",
                markdown_table(fedembed_tables.shares(name, imbalanced, other)),
            ]
    assigned = assignment_table(balanced)
    if assigned is not None:
        parts += [f"**{assigned.caption}**, balanced", markdown_table(assigned), escape(assigned.note)]
    return "\n\n".join([*parts, settings_text(balanced), provenance_text(balanced)])


def replies_of(name: str) -> str | None:
    """FedNLG's table 1, in three parts, and table 2; None if no replies were scored."""
    results = comparison(name)
    answered = prompt_table(results)
    tables = [*reply_tables(results), *([answered] if answered else [])]
    if not tables:
        return None
    parts = [f"**{made.caption}**\n\n{markdown_table(made)}\n\n{escape(made.note)}" for made in tables]
    return "\n\n".join([*parts, settings_text(results), provenance_text(results)])


def newcomers_of(name: str) -> str | None:
    """Perplexity of speakers who never took part, by number of own samples; None if none were withheld."""
    results = comparison(name)
    made, folds = configuration_table(results, WITHHELD), folds_of(results)
    if made is None:
        return None
    withheld = f", each in one of {folds} folds" if folds else ""
    note = (
        f"Test perplexity of {results['data']['newcomers']} speakers who were withheld from training{withheld}, by the "
        "number of own replies that they adapt to. 0: a new speaker's initial persona, which is random. Same: there is "
        f"nothing to adapt. The best value of a column is bold. {seed_note(results)}"
    )
    return "\n\n".join([markdown_table(made), escape(note), settings_text(results), provenance_text(results)])


def next_words_of(name: str) -> str | None:
    """OOV Expansion's table 1 with the numbers of its figures 3 to 5; None without next-word runs."""
    results = comparison(name)
    shown, samples = systems(results), samples_table(results)
    if not shown:
        return None
    tables = [*next_word_tables(results, shown), *([samples] if samples else [])]
    parts = [f"**{made.caption}**\n\n{markdown_table(made)}\n\n{escape(made.note)}" for made in tables]
    return "\n\n".join([*parts, settings_text(results), provenance_text(results)])


def next_word_bars_of(name: str) -> str | None:
    shown = systems(comparison(name))
    if not shown:
        return None
    described = "EMR3 and KEMR3 of new users, with intervals over users"
    return figure(f"{name}-next-words", next_word_figures.bars(shown), described)


def word_frequencies_of(name: str) -> str:
    """OOV Expansion's figure 1 and the OOV rates of its table 1, from the record of experiments/word_frequencies.py."""
    counted = read_json(records.record_file(name), missing=f"{name}: no such record")
    rates = next_word_figures.oov_table(counted)
    drawn = figure(name, next_word_figures.word_frequencies(counted), "Quantiles of word frequencies")
    return f"{drawn}\n\n**{rates.caption}**\n\n{markdown_table(rates)}\n\n{escape(rates.note)}"


def curves_of(name: str) -> str:
    return figure(f"{name}-curves", figures.curves(comparison(name)), "Learning curves on the evaluation part")


def by_samples_of(name: str) -> str:
    results = comparison(name)
    tables = [(people.title, configuration_table(results, people)) for people in (KNOWN, WITHHELD)]
    drawn = figures.by_samples([(title, made) for title, made in tables if made is not None])
    return figure(f"{name}-by-samples", drawn, "Perplexity by number of own samples")


def scores_of(name: str) -> str:
    scores = fedembed_tables.scores(name, comparison(f"fedembed-{name}"), None)
    drawn = figures.dots(scores, [(1, "without privacy"), (2, "epsilon 8")])
    return figure(f"fedembed-{name}-scores", drawn, "Macro-F1 of every method, balanced")


def maps_of(name: str) -> str | None:
    """None if the record has no projection: records keep it only for pages that show it."""
    results = comparison(name)
    if not any(one["runs"][0].get("maps") for one in results["configurations"].values()):
        return None
    return figure(f"{name}-maps", figures.maps(results), "t-SNE projection of users' vectors")


def figure(name: str, svg: str, described: str) -> str:
    """Write a figure and return the Markdown line that shows it."""
    FIGURES.mkdir(parents=True, exist_ok=True)
    (FIGURES / f"{name}.svg").write_text(svg, encoding="utf-8")
    return f"![{described}](../figures/{name}.svg)"


KINDS = {
    "results": results_of,
    "samples": samples_of,
    "bench": bench_of,
    "preferences": preferences_of,
    "replies": replies_of,
    "newcomers": newcomers_of,
    "next-words": next_words_of,
    "next-word-bars": next_word_bars_of,
    "word-frequencies": word_frequencies_of,
    "scores": scores_of,
    "curves": curves_of,
    "by-samples": by_samples_of,
    "maps": maps_of,
}
MARKED = re.compile(rf"(<!-- ({'|'.join(KINDS)}): (\S+) -->\n)(.*?)(<!-- end -->)", flags=re.DOTALL)


def filled(match: re.Match[str]) -> str:
    marker, kind, name, found, end = match.groups()
    here, command = is_here(name), f"homespun compare experiments/{name}.toml"
    if kind in ("preferences", "scores"):
        here, command = is_here(f"fedembed-{name}"), f"make fedembed-{name}"
    if kind == "word-frequencies":
        command = "python experiments/word_frequencies.py CORPUS..."
    if kind == "bench":
        here, command = bench_file(name).exists(), f"homespun bench {name} --json > {bench_file(name)}"
    made = KINDS[kind](name) if here else None
    if made is not None:
        return f"{marker}{made}\n{end}"
    if found.strip() and not found.startswith(NOT_RUN):
        print(f"{name}: no results found, the page keeps its {kind}", file=sys.stderr)
        return match[0]
    return f"{marker}{NOT_RUN}: `{command}`\n{end}"


def main() -> None:
    for page in map(Path, sys.argv[1:]):
        page.write_text(MARKED.sub(filled, page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
