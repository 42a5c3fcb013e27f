"""Commands that train, evaluate and report."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated, Any

import typer

from homespun.cli.options import (
    ContextColumn,
    ConversationColumn,
    Data,
    DataSet,
    Folder,
    Json,
    LabelColumn,
    ProfileColumn,
    Set,
    TextColumn,
    Trust,
    UserColumn,
    data_settings_from,
    print_json,
)
from homespun.core.errors import RunError, SettingsError
from homespun.core.settings import parse_overrides
from homespun.system.terminal import say


def train(
    method: Annotated[str, typer.Argument(help="Method (furl, fedperc, ...) or a .py file with one.")],
    data: Data = "dialects",
    folder: Annotated[
        Path | None, typer.Option("--folder", "-f", help="Folder of the run. Default: runs/METHOD-DATA.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Number of rounds.")] = None,
    epochs: Annotated[
        float | None, typer.Option(help="Passes over the data, instead of --rounds. Default: as in the paper, or 10.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    base: Annotated[
        str | None, typer.Option(help="Base model, a folder or a name: short for --set base_model=BASE.")
    ] = None,
    settings: Set = [],  # noqa: B006
    data_settings: DataSet = [],  # noqa: B006
    user_column: UserColumn = None,
    context_column: ContextColumn = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    conversation_column: ConversationColumn = None,
    profile_column: ProfileColumn = None,
    json_output: Json = False,
) -> None:
    """Train a method on a corpus and write a report.

    \b
    If training is interrupted, run the same command again to resume.

    Example: homespun train furl --data dialects --data-set users=200 --epochs 5

    Example: homespun train fednlg --data talk.jsonl --base runs/seq2seq/model
    """
    from homespun.runs.training import LENGTH_SETTINGS, default_run_settings

    source = data_settings_from(
        data,
        data_settings,
        user=user_column,
        context=context_column,
        text=text_column,
        label=label_column,
        conversation=conversation_column,
        profile=profile_column,
    )
    values = _with_base(parse_overrides(settings), base, method=method)
    if rounds is not None and epochs is not None:
        raise SettingsError("--rounds and --epochs cannot be combined")
    length = {name: value for name, value in (("rounds", rounds), ("epochs", epochs)) if value is not None}
    if not LENGTH_SETTINGS & {*length, *values, *default_run_settings(method)}:
        length = {"epochs": 10.0}
    folder = folder or Path("runs") / f"{Path(method).stem}-{Path(data).name.split('.')[0]}"
    _train(method, source, folder, settings={**length, "seed": seed, **values}, json_output=json_output)


def _with_base(values: Mapping[str, Any], base: str | None, *, method: str) -> dict[str, Any]:
    """The settings with the base model that --base names."""
    from homespun.system.method_loading import method_module
    from homespun.system.trust import named_by_user

    if base is None:
        return dict(values)
    if "base_model" in values:
        raise SettingsError("--base and --set base_model=... cannot be combined")
    with named_by_user():
        known = method_module(method).Settings.model_fields
    if "base_model" not in known:
        raise SettingsError(f"--base: {method} has no base model (no setting base_model). Leave it out.")
    return {**values, "base_model": base}


def _train(method: str, source: Any, folder: Path, *, settings: Mapping[str, Any], json_output: bool) -> None:
    """Train or resume a run, write its report and results, and print its tables."""
    from homespun.cli.console import Reporter
    from homespun.experiments.reply_quality import require_inverse
    from homespun.experiments.results import single_results, write_results
    from homespun.privacy.ledger import BudgetError
    from homespun.report.html import write_report
    from homespun.runs.training import prepare, train_and_evaluate

    federation = source.load()
    with (
        Reporter(to_stderr=json_output) as reporter,
        prepare(
            method, federation, folder=folder, settings=settings, data=source, progress=reporter.show_progress
        ) as run,
    ):
        found, stopped = _finished_results(run, folder), None
        if found is None:
            require_inverse(run)
            if run.state.round:
                reporter.console.print(f"{folder}: resuming after round {run.state.round}")
            with reporter.following(run, run.method.name) as show:
                try:
                    for event in train_and_evaluate(run):
                        show(event)
                except BudgetError as error:
                    stopped = error
            if stopped is not None and run.state.round == 0:
                raise stopped
            found = single_results(run, source, title=run.method.name)
        written = write_report(found, folder, progress=reporter.show_progress)
        write_results(folder, found)  # last: results mark the run as finished
    _show(found, written, json_output=json_output)
    if stopped is not None:  # after the results of the rounds that were trained
        raise stopped


def _finished_results(run: Any, folder: Path) -> dict[str, Any] | None:
    """The results of a finished run whose report is missing; None if there is anything left to train or evaluate.

    Raises if the run already has a report.
    """
    from homespun.experiments.results import RESULTS_FILE, only_run, read_results
    from homespun.report.html import REPORT_FILES

    done = run.state.round
    if not run.finished or not (folder / RESULTS_FILE).exists() or len(only_run(folder)["rounds"]) != done:
        return None
    if not all((folder / name).exists() for name in REPORT_FILES):
        return read_results(folder)
    privacy, more = run.settings.privacy, f"train more rounds with --rounds {2 * done}, or "
    if privacy is not None and privacy.epsilon is not None:
        more = "or, since its noise was computed for this many rounds, "
    raise RunError(
        f"{folder}: this run is finished ({done} rounds). See {folder / 'report.html'}, {more}choose another --folder."
    )


def _show(found: Mapping[str, Any], report: Path, *, json_output: bool, samples: Sequence[Any] = ()) -> None:
    from homespun.cli.console import out, table
    from homespun.report.prompt_continuations import print_showcase
    from homespun.report.tables import plain_tables

    if json_output:
        print_json(found)
        return
    for made in plain_tables(found):
        out.print(table(*made))
        out.print()
    print_showcase(samples)
    out.print(f"Report: {report}")


def compare(
    experiment: Annotated[Path, typer.Argument(help="Experiment file (.toml); see experiments/.")],
    folder: Annotated[
        Path | None, typer.Option("--folder", "-f", help="Folder of the runs. Default: runs/NAME.")
    ] = None,
    json_output: Json = False,
) -> None:
    """Train several configurations with several seeds and compare them.

    Example: homespun compare experiments/furl-dialects.toml
    """
    from homespun.experiments.experiment import read_experiment

    made = read_experiment(experiment)
    _compare(made, folder or Path("runs") / made.name, json_output=json_output)


def _compare(experiment: Any, folder: Path, *, json_output: bool) -> None:
    from homespun.cli.console import Reporter
    from homespun.experiments.experiment import collect, train_all
    from homespun.experiments.results import write_results
    from homespun.report.html import write_report
    from homespun.report.prompt_continuations import check_showcase, experiment_showcase, showcase_results

    check_showcase(experiment)
    with Reporter(to_stderr=json_output) as reporter:
        train_all(experiment, folder, reporter.following, progress=reporter.show_progress)
    with Reporter(to_stderr=json_output, title=experiment.name) as reporter:
        samples = experiment_showcase(experiment, folder, progress=reporter.show_progress)
        collected = collect(experiment, folder, progress=reporter.show_progress)
        found = {**collected, **showcase_results(experiment, samples)}
        write_results(folder, found)
        written = write_report(found, folder, progress=reporter.show_progress)
    _show(found, written, json_output=json_output, samples=samples)


def demo(
    folder: Annotated[Path, typer.Option("--folder", "-f", help="Folder of the runs.")] = Path("runs/demo"),
    settings: Set = [],  # noqa: B006
    json_output: Json = False,
) -> None:
    """Compare FedPerC with its baselines on addresses of US presidents.

    \b
    This takes less than five minutes on two cores. A larger base model takes
    longer.

    Example: homespun demo

    Example: homespun demo --set base=smollm2 --folder runs/demo-smollm2
    """
    from homespun.experiments.experiment import read_experiment, with_settings

    with as_file(files("homespun") / "demo.toml") as path:
        experiment = with_settings(read_experiment(path), parse_overrides(settings))
    _compare(experiment, folder, json_output=json_output)


def evaluate(
    folder: Folder,
    part: Annotated[str, typer.Option(help="Part of the data: train, eval or test.")] = "test",
    trust: Trust = [],  # noqa: B006
    json_output: Json = False,
) -> None:
    """Evaluate a run on its participants and on new users, and against simple controls.

    Example: homespun evaluate runs/furl-dialects
    """
    from homespun.cli.console import Reporter, out, table
    from homespun.experiments.reply_quality import reply_results
    from homespun.report.next_word_tables import evaluation_rows
    from homespun.report.reply_tables import score_rows
    from homespun.report.score_tables import control_name
    from homespun.report.table_model import metric_named
    from homespun.runs.controls import evaluate_controls
    from homespun.runs.evaluate import evaluate as evaluate_run
    from homespun.runs.evaluate import evaluate_newcomers
    from homespun.runs.training import reopen

    if part not in ("train", "eval", "test"):
        raise SettingsError(f"--part {part}: expected train, eval or test")
    with Reporter(to_stderr=True) as reporter, reopen(folder, trust=trust, progress=reporter.show_progress) as run:
        newcomers = evaluate_newcomers(run) if part == "test" else {}
        part = run.scoring.scored_part if part == "test" else part
        controls = evaluate_controls(run, part)  # type: ignore[arg-type]
        found = {
            run.method.name: evaluate_run(run, part),  # type: ignore[arg-type]
            **{control_name(name): one for name, one in controls.items()},
            **{f"newcomers, {count} examples": one for count, one in newcomers.items()},
        }
        replies = reply_results(run) if part == run.scoring.scored_part else None
        round = run.state.round
    if json_output:
        print_json(
            {
                "round": round,
                "part": part,
                "evaluations": {name: one.to_dict() for name, one in found.items()},
                **({} if replies is None else {"replies": replies}),
            }
        )
        return
    name, _ = next(iter(found.values())).headline
    metric = metric_named(name)
    columns = ("value", "user_mean", "user_worst_tenth")
    shown = {name: one.to_dict() for name, one in found.items()}
    rows = [(name, *(metric.text(one[column]) for column in columns), str(one["users"])) for name, one in shown.items()]
    out.print(
        table(
            f"{folder}, {part} part, after round {round}",
            ("", metric.heading(metric.title), "user mean", "worst tenth", "users"),
            rows,
        )
    )
    for more in (evaluation_rows(shown), None if replies is None else score_rows(replies)):
        if more is not None:
            out.print()
            out.print(table(*more))


def report(folder: Folder, trust: Trust = []) -> None:  # noqa: B006
    """Write report.html and report.md of a finished run or comparison.

    \b
    The reports are made from results.json. A run that was trained from Python is
    evaluated first.

    Example: homespun report runs/demo
    """
    from homespun.cli.console import Reporter, out
    from homespun.experiments.results import RESULTS_FILE, single_results, write_results
    from homespun.report.html import rewrite_report
    from homespun.runs.open_run import SETTINGS_FILE
    from homespun.runs.training import reopen

    with Reporter(to_stderr=True) as reporter:
        if not (folder / RESULTS_FILE).exists() and (folder / SETTINGS_FILE).exists():
            # not only read: a reranker may be tuned
            with reopen(folder, trust=trust, read_only=False, progress=reporter.show_progress) as run:
                if run.finished:
                    write_results(folder, single_results(run, run.data, title=run.method.name))
        written = rewrite_report(folder, progress=reporter.show_progress)
    out.print(str(written))


def check(method: Annotated[str, typer.Argument(help="Method, or a .py file with one.")]) -> None:
    """Check a method's contract, and measure how much one update reveals.

    Example: homespun check furl
    """
    from homespun.testing.contract import check_method

    for line in check_method(method).lines():
        say(line)


def bench(
    workload: Annotated[
        str,
        typer.Argument(help="Name of a workload, as listed above."),
    ],
    rounds: Annotated[int, typer.Option(min=1, help="Number of rounds of each side.")] = 5,
    settings: Annotated[
        list[str], typer.Option("--set", "-s", metavar="NAME=VALUE", help="Setting of the workload.")
    ] = [],  # noqa: B006
    json_output: Json = False,
) -> None:
    """Run a benchmark.

    \b
    Each workload compares two sides, alternating in one run:
    w1, w2, w2-text, w3, w3-clipped, w4, w5
                 the cohort engine and a reference loop
    w5-search    one user's search at home and a reference search
    beam         beam search and a reference search
    pretrain     pre-training of a reply model and a plain loop
    keystroke    suggestions in Python and in onnxruntime
    int8         an exported next-word model and its 8-bit form
    population   two population sizes
    step-times   FedPerC and its baselines

    Example: homespun bench w1
    """
    from homespun.cli.console import out, table
    from homespun.cli.workloads import run_workload, tables_of

    found = run_workload(workload, rounds=rounds, settings=parse_overrides(settings))
    if json_output:
        print_json(found)
        return
    tables = tables_of(workload, found)
    for made in tables:
        header = [column.title for column in made.columns]
        out.print(table(made.caption, header, [[cell.text for cell in row] for row in made.rows]))
        out.print("", *textwrap.wrap(made.note, 80), "", sep="\n")
    for name, value in {} if tables else found.items():
        say(f"{name:28} {value:.4g}" if isinstance(value, float) else f"{name:28} {value}")
