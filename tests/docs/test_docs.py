"""Pages get their tables from finished experiments, deterministically, and lose none."""

import importlib.util
import json
import re
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import small_next_words
import small_replies
from language_models import write_gpt2
from spoken_corpus import SMALL, write_corpus

from homespun.data.source import DataSettings
from homespun.experiments.experiment import Experiment, collect, train_all
from homespun.experiments.results import write_results

FILE = Path(__file__).parents[2] / "docs" / "generate.py"
PAGE = "Before.\n\n<!-- results: some -->\n{}<!-- end -->\n\n<!-- samples: some -->\n{}<!-- end -->\nAfter.\n"
NO_CONTROLS: dict = {}
NOT_RUN = "Not run yet: `homespun compare experiments/some.toml`\n"


@pytest.fixture
def generate(monkeypatch):
    """Generate a page and return its text."""
    spec = importlib.util.spec_from_file_location("docs_generate", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def written(text):
        Path("page.md").write_text(text, encoding="utf-8")
        monkeypatch.setattr("sys.argv", ["generate.py", "page.md"])
        module.main()
        return Path("page.md").read_text(encoding="utf-8")

    return written


def run_experiment(folder):
    base = write_gpt2(folder / "base")
    experiment = Experiment(
        name="some",
        data=DataSettings(source=str(write_corpus(folder / "people.csv"))),
        folds=2,
        settings={"rounds": 1, "workers": 0, "withheld": 0.5, "base_model": str(base), **SMALL},
        configurations={
            "ours": {"title": "Ours_*", "method": "fedperc"},
            "shared": {"title": "Shared", "method": "fedperc", "settings": {"prefix": "shared"}},
        },
    )
    train_all(experiment, folder / "runs" / "some", lambda run, title: nullcontext(lambda event: None))
    write_results(folder / "runs" / "some", collect(experiment, folder / "runs" / "some"))


def test_without_results_a_page_keeps_its_content_or_shows_the_command(generate, capsys):
    assert generate(PAGE.format("", "")) == PAGE.format(NOT_RUN, NOT_RUN)
    assert generate(PAGE.format(NOT_RUN, NOT_RUN)) == PAGE.format(NOT_RUN, NOT_RUN)
    assert generate(PAGE.format("A table.\n", "")) == PAGE.format("A table.\n", NOT_RUN)
    assert "some: no results found, the page keeps its results" in capsys.readouterr().err


def test_tables_and_samples_of_an_experiment(generate, tmp_path):
    run_experiment(tmp_path)
    page = generate(PAGE.format(NOT_RUN, "Old samples.\n"))
    assert page == generate(page)
    lines = page.splitlines()
    at = lines.index("| Configuration | 0 | 1 | 5 | 15 | all |")
    assert [line.split(" | ")[0] for line in lines[at + 2 : at + 5]] == [
        "| Base model", "| Base model, own sentences in context", "| Ours\\_\\*",
    ]  # fmt: skip
    assert page.count("| Configuration | User mean | 80 of 100 users | Worst tenth |") == 2
    assert "**Table 2, withheld users**" in page and "| Ours\\_\\* against | Known users, as trained, % |" in page
    assert "(interval " not in page  # four users are too few for one
    assert "**Effect of own samples**" in page and "- Ours\\_\\*: rounds 1 (" in page
    assert "**Contribution of private parameters**" in page and "| Base model, 15 own sentences in context |" in page
    assert "2 participants, 20 examples, 1 seed of 2 folds; python" in page
    samples = page[page.index("<!-- samples") :]
    assert "Old samples" not in samples and "| We must |" in samples and "| I think |" in samples
    assert "Ours\\_\\*, seed 0, fold 0; sampled with" in samples
    drawn = generate("<!-- curves: some -->\n<!-- end -->\n<!-- maps: some -->\nAn old map.\n<!-- end -->\n")
    assert "![Learning curves on the evaluation part](../figures/some-curves.svg)" in drawn
    assert "An old map." in drawn  # two users are too few for one
    svg = Path("docs/figures/some-curves.svg").read_text()
    assert svg.count("<polyline") == 2 * (2 + 1)  # two folds and their mean, of two configurations
    drawn = generate("<!-- by-samples: some -->\n<!-- end -->\n")
    assert "![Perplexity by number of own samples](../figures/some-by-samples.svg)" in drawn
    svg = Path("docs/figures/some-by-samples.svg").read_text()
    assert svg.count("<polyline") == 2 * 4  # two controls and two configurations, for known and for withheld users
    assert "Known users" in svg and "Withheld users" in svg and "Ours_*" in svg
    assert "Not run yet" not in page and page.startswith("Before.") and page.endswith("After.\n")


def test_tables_of_a_benchmark(generate):
    page = "<!-- bench: step-times -->\n{}<!-- end -->\n"
    command = "homespun bench step-times --json > runs/bench-step-times.json"
    assert generate(page.format("")) == page.format(f"Not run yet: `{command}`\n")
    time = {"median_s": 0.05, "low_s": 0.04, "high_s": 0.07}
    memory = {"private_bytes": 1024, "context_bytes": 1024, "person_bytes": 3072, "shared_bytes": 0}
    one = {"title": "FedPerC", "features": "", "step_times": {"update": time, "test": time}, "memory": memory}
    found = {"schema": 1, "base_model": "tiny", "rounds": 5, "threads": 1, "batch": 15}
    found |= {"wall_ratio": 1.0, "versions": {"python": "3.11"}}
    Path("runs").mkdir()
    Path("runs/bench-step-times.json").write_text(json.dumps({**found, "methods": [one]}))
    made = generate(page.format(""))
    assert "| FedPerC | – | 50.0 ± 15.0 | – | – | 50.0 ± 15.0 |" in made
    assert "| FedPerC | 1.0 kB | 1.0 kB | 3.1 kB | 0 B |" in made and "\n\npython 3.11.\n<!-- end -->" in made


def preferences(name, scores):
    """Results of two configurations without privacy and one with it; two seeds of three sub-populations."""

    def runs(values, privacy=None):
        return [
            {
                "seed": seed,
                "run": {"rounds": 2, "cohort": 3},
                "rounds": [{"seconds": 0.5}],
                "test": {"group_f1": {str(place): value + 0.1 * seed for place, value in enumerate(values)}},
                **({} if privacy is None else {"privacy": privacy}),
            }
            for seed in (0, 1)
        ]

    private = {
        "epsilon": 7.99, "delta": 1e-5, "noise_multiplier": 0.77, "clip": {"*": 1.0}, "rate": 0.1, "releases": 40,
        "counted_noise": 0.77,
    }  # fmt: skip
    return {
        "name": name,
        "data": {"groups": {"a": 50, "b": 25, "c": 25}, "users": 100},
        "configurations": {
            "prototype": {"title": "FedEmbed-Prototype", "runs": runs(scores)},
            "new": {"title": "New", "runs": runs([0.5, 0.5, 0.5])},
            "prototype-private": {"title": "FedEmbed-Prototype, Gaussian", "runs": runs([0.1, 0.2, 0.3], private)},
        },
    }


def test_fedembeds_tables_show_the_papers_values(generate):
    import fedembed_tables  # docs/generate.py has put its folder on the path

    balanced, imbalanced = preferences("fedembed-voices", [0.6, 0.7, 0.8]), preferences("other", [0.9, 0.4, 0.6])
    found = [[cell.text for cell in row] for row in fedembed_tables.scores("voices", balanced, imbalanced).rows]
    assert found == [
        ["FedEmbed-Prototype", "0.75 ± 0.07 (0.78)", "0.25 ± 0.07 (0.61)", "0.68 ± 0.07 (0.63)", "0.25 ± 0.07 (0.53)"],
        ["New", "0.55 ± 0.07 (–)", "– (–)", "0.55 ± 0.07 (–)", "– (–)"],
    ]
    assert fedembed_tables.privacy_text(balanced) == (
        "epsilon 7.99 at delta 1e-05 for one run (noise 0.77 times the clip norm, clip 1)"
    )
    assert fedembed_tables.total_privacy_cost_text(balanced, imbalanced) == (
        " Together they cost more, since all of them use the same images: 2 runs 10.7, 4 runs 15.0."
    )
    assert fedembed_tables.total_privacy_cost_text({**balanced, "configurations": {}}, None) == ""
    import figures

    scores = fedembed_tables.scores("voices", balanced, imbalanced)
    dots = figures.dots(scores, [(1, "without privacy"), (2, "epsilon 8")])
    assert dots.count('<circle cx="') == 2 + 2 + 3  # a legend, the paper's two scores, and three of ours
    assert dots.count('fill="none"') == 2 and ">New<" in dots
    by_size = imbalanced | {"data": {"groups": {"a": 20, "b": 8, "c": 4}}}
    found = fedembed_tables.shares("voices", by_size, "")
    assert [cell.text for cell in found.rows[0]] == [
        "FedEmbed-Prototype", "0.95 ± 0.07 (0.79)", "0.45 ± 0.07 (0.71)", "0.65 ± 0.07 (0.54)",
    ]  # fmt: skip


def write_reply_record(**more):
    """A record of four configurations and two seeds."""
    import records  # docs/generate.py has put its folder on the path
    from record_file import Record, write_record

    runs = {
        (key, f"seed-{seed}"): records.shortened(small_replies.run_of(key, seed, **more))
        for key in small_replies.TITLES
        for seed in (0, 1)
    }
    draws = ["seed-0", "seed-1"]
    record = Record(
        name="some",
        titles=small_replies.TITLES,
        draws=draws,
        runs=runs,
        versions=dict.fromkeys(runs, small_replies.VERSIONS),
        data=dict.fromkeys(draws, small_replies.DATA),
        controls=dict.fromkeys(draws, small_replies.CONTROLS),
    )
    return write_record(Path("docs/results/some.json"), record)


def test_tables_of_replies_from_a_record(generate):
    block = "<!-- replies: some -->\n{}<!-- end -->\n"
    assert generate(block.format("")) == block.format(NOT_RUN)
    text = write_reply_record().read_text(encoding="utf-8")
    assert text.count("[[0,1,2,3,4,5],[3,4,5,6,7,8]]") == 1  # once for all runs
    page = generate(block.format(""))
    assert page == generate(page)
    lines = page.splitlines()
    assert lines[1] == "**Perplexity of test replies**"
    assert lines[3] == (
        "| Configuration | Perplexity | Against SEQ2SEQ + FL, % | Against Persona, % | Another speaker's persona | "
        "Own against another's, % |"
    )
    assert lines[6].startswith("| FedNLG | 40.00 ± 0.00 | **−20.00 \\[−20.00, −20.00\\]** | **+21.72 \\[+")
    assert lines[6].endswith(" | 44.00 ± 0.00 | **−9.09 \\[−9.09, −9.09\\]** |")
    assert "| FedNLG | 11.00 ± 1.41 |" in page and "by sacrebleu, nrefs:1\\|version:2." in page
    assert "| FedNLG | 100.0 \\[100.0, 100.0\\] | **+50.0 \\[+50.0, +50.0\\]** | 0.0 \\[0.0, 0.0\\] |" in page
    assert "| How are you? | ada | seq2seq ada fine | persona ada fine | fedavg ada fine |" in page
    assert "2 participants, 24 examples, 2 seeds; python 3, homespun 0." in page


def test_a_table_of_new_speakers_from_a_record(generate):
    block = "<!-- newcomers: some -->\n{}<!-- end -->\n"
    evaluation = small_replies.evaluation
    write_reply_record()
    assert generate(block.format("An old table.\n")) == block.format("An old table.\n")  # nobody was withheld
    by_count = {count: evaluation(value) for count, value in (("0", 62.0), ("1", 61.0), ("20", 58.0), ("all", 55.0))}
    write_reply_record(newcomers=by_count, newcomers_untouched=evaluation(64.0))
    lines = generate(block.format("")).splitlines()
    assert lines[1] == "| Configuration | 0 | 1 | 20 | all |"
    assert lines[3] == "| Base model | 64.00 ± 0.00 | same | same | same |"
    assert lines[4] == "| FedNLG | **62.00 ± 0.00** | **61.00 ± 0.00** | **58.00 ± 0.00** | **55.00 ± 0.00** |"
    assert any("Test perplexity of 2 speakers who were withheld from training, by the number" in line for line in lines)


def write_next_word_record(runs):
    """A record of these runs, by configuration and draw."""
    import records  # docs/generate.py has put its folder on the path
    from record_file import Record, write_record

    keys, draws = (list(dict.fromkeys(names)) for names in zip(*runs, strict=True))
    record = Record(
        name="some",
        titles={key: small_next_words.TITLES.get(key, key) for key in keys},
        draws=draws,
        runs={place: records.shortened(run) for place, run in runs.items()},
        versions=dict.fromkeys(runs, small_replies.VERSIONS),
        data=dict.fromkeys(draws, small_next_words.DATA),
        controls=dict.fromkeys(draws, NO_CONTROLS),
    )
    return write_record(Path("docs/results/some.json"), record)


def next_word_runs(**more):
    """Three configurations, two folds."""
    titles = small_next_words.TITLES
    return {(key, f"fold-{fold}"): small_next_words.run_of(key, fold, **more) for key in titles for fold in (0, 1)}


def test_tables_of_next_words_from_a_record(generate):
    blocks = "<!-- next-words: some -->\n{}<!-- end -->\n<!-- next-word-bars: some -->\n{}<!-- end -->\n"
    assert generate(blocks.format("", "")) == blocks.format(NOT_RUN, NOT_RUN)
    text = write_next_word_record(next_word_runs()).read_text(encoding="utf-8")
    assert '"user_values"' not in text and text.count('"keys"') == 2  # once for all runs, before and after
    page = generate(blocks.format("", ""))
    assert page == generate(page)
    lines = page.splitlines()
    assert lines[1] == "**Suggestions of the next word**" and lines[3].startswith(
        "| Configuration | EMR3, % | Minus OOV-as-UNK |"
    )
    assert "| OOV Expansion | 26.00 \\[26.00, 26.00\\] | **+2.00 \\[+2.00, +2.00\\]** | 25.56 \\[" in page
    assert "each withheld in one of 2 folds" in page and "6 users, 600 words" in page
    assert "**Difference from OOV-as-UNK**" in page and "base\\_model nextword" in page
    assert "1 seed of 2 folds; python 3" in page
    assert "![EMR3 and KEMR3 of new users, with intervals over users](../figures/some-next-words.svg)" in page
    svg = Path("docs/figures/some-next-words.svg").read_text()
    assert svg.count("<rect") == 1 + 2 * 5  # a bar for each of three configurations and two models before them
    assert svg.count(">26.00<") == 1 and svg.count(">25.56<") == 1 and ">OOV-oracle, not personalized<" in svg
    write_next_word_record(next_word_runs(newcomers={}))  # nobody was withheld: participants
    assert "Participants: 6 users, 600 words." in generate(blocks.format("", ""))


def test_word_frequencies_from_a_record(generate):
    block = "<!-- word-frequencies: counts -->\n{}<!-- end -->\n"
    command = "python experiments/word_frequencies.py CORPUS..."
    assert generate(block.format("")) == block.format(f"Not run yet: `{command}`\n")
    rates = {
        "5000": {"none": 0.0575, "training": 0.05, "all": 0.005},
        "10000": {"none": 0.03, "training": 0.02, "all": 0.0},
    }
    corpus = {"users": 934, "words": 2000, "tested": 1500, "log10_per_million": [0.5, 1.0, 4.2], "oov": rates}
    found = {"schema": 1, "frequent": 10000, "own_words": 1000, "corpora": {"gitter": corpus, "irc": corpus}}
    Path("docs/results").mkdir(parents=True)
    Path("docs/results/counts.json").write_text(json.dumps(found))
    page = generate(block.format(""))
    assert "| gitter | 5.75 | 5.00 | 0.50 | 3.00 | 2.00 | 0.00 | 1,500 |" in page
    assert "1,000 most frequent" in page and "gitter 934 users and 2,000 words" in page
    assert "![Quantiles of word frequencies](../figures/counts.svg)" in page
    svg = Path("docs/figures/counts.svg").read_text()
    assert svg.count("<polyline") == 2 and ">100,000<" in svg and ">1<" in svg  # axis from 10^0 to 10^5


def test_a_record_of_next_words_is_small(generate):
    """Counts of 200 users with 12 configurations and 5 numbers of own samples take less than 300 kB."""
    from record_file import read_record  # docs/generate.py has put its folder on the path

    generator = np.random.default_rng(0)
    words = generator.integers(40, 900, size=(5, 40))

    def users(fold):
        oov, keys = words[fold] // 12, 5 * words[fold]
        hits, covered, saved = (generator.binomial(*one) for one in ((words[fold], 0.25), (oov, 0.3), (keys, 0.3)))
        counts = (words[fold], hits, oov, covered // 4, covered, keys, saved)
        return small_next_words.evaluation(np.stack(counts, axis=1).tolist())

    def run(fold):
        newcomers = {number: users(fold) for number in ("0", "1", "5", "20", "all")}
        positions = {"participants": list(range(160)), "newcomers": list(range(40 * fold, 40 * fold + 40))}
        return small_next_words.run_of("ours", fold, newcomers=newcomers, positions=positions, test=users(fold))

    runs = {(f"configuration-{number}", f"fold-{fold}"): run(fold) for number in range(12) for fold in range(5)}
    path = write_next_word_record(runs)
    assert path.stat().st_size < 300_000
    for place, found in read_record(path).runs.items():
        for number, evaluation in runs[place]["newcomers"].items():
            assert found["newcomers"][number]["user_counts"] == evaluation["user_counts"]


@pytest.mark.parametrize("page", sorted((FILE.parent / "methods").glob("*.md")), ids=lambda page: page.stem)
def test_a_page_matches_its_records(generate, monkeypatch, page):
    """`python docs/generate.py` on a fresh clone changes no page and no figure."""
    import records  # docs/generate.py has put its folder on the path

    monkeypatch.setattr(records, "RECORDS", FILE.parent / "results")
    before = page.read_text(encoding="utf-8")
    assert generate(before) == before, f"{page.name} does not match its records: run docs/generate.py on it"
    for drawn in Path("docs/figures").glob("*.svg"):
        assert drawn.read_bytes() == (FILE.parent / "figures" / drawn.name).read_bytes(), drawn.name


def test_every_table_has_a_record_or_a_note_that_it_has_none():
    """The numbers of a page come from a record in the repository, or a note before the table says that they do not."""
    pages = sorted((FILE.parent / "methods").glob("*.md"))
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for found in re.finditer(r"<!-- (?:results|replies|newcomers|next-words|word-frequencies): (\S+) -->", text):
            before = text[max(0, found.start() - 300) : found.start()]
            marked = "No record of these runs is kept" in before
            assert marked != (FILE.parent / "results" / f"{found[1]}.json").exists(), f"{page.name}: {found[1]}"
    assert len(pages) == 5
