"""A comparison of next-word methods over two folds, from training to the report."""

import json
from contextlib import nullcontext

import pytest

from homespun.data.source import DataSettings
from homespun.experiments.experiment import Experiment, collect, run_folder, train_all
from homespun.experiments.results import only_run
from homespun.report.html import page
from homespun.report.next_word_systems import systems
from homespun.report.tables import markdown, plain_tables

pytestmark = pytest.mark.system

USERS, TEXTS, WORDS = 6, 20, 8  # texts of each user, words of each text; the second is the user's own
SETTINGS = {
    "base_model": "untrained-small", "length": 12, "lr": 0.5, "batch": 4, "personalize_lrs": [1.0],
    "adapters": [[4]], "adapter_scales": [0.1], "personalize_epochs": 4, "validation_share": 0.3,
    "server": "fedavg", "server_lr": 1.0, "rounds": 2, "cohort": 2, "workers": 0, "withheld": 0.5,
    "final_personalization": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared")
    rows = [{"user": f"u{user}", "text": f"we zorb{'lax' * user} and now we should do more"} for user in range(USERS)]
    (folder / "chat.jsonl").write_text("".join(f"{json.dumps(row)}\n" * TEXTS for row in rows))
    made = Experiment(
        name="words",
        data=DataSettings(source=str(folder / "chat.jsonl")),
        folds=2,
        settings=SETTINGS,
        configurations={
            "own": {"method": "oov_expansion", "settings": {"evaluate_samples": [0, 5, "all"]}},
            "unk": {"method": "oov_expansion", "title": "OOV-as-UNK", "settings": {"own_words": "none"}},
        },
    )
    train_all(made, folder, lambda run, title: nullcontext(lambda event: None))
    return made, folder


def test_every_user_is_a_new_user_once(compared):
    made, folder = compared
    found = collect(made, folder)
    before, own, unk = systems(found)
    tested = USERS * TEXTS // 10 * WORDS
    assert [one.title for one in (before, own, unk)] == ["Not personalized", "own", "OOV-as-UNK"]
    assert {(one.counts.users, one.counts.words) for one in (before, own, unk)} == {(USERS, tested)}
    words, hits, oov, oov_hits, covered, *_ = own.counts.of_users.sum(axis=0).tolist()
    assert (words, oov, covered) == (tested, tested // WORDS, tested // WORDS) and oov_hits > 0
    assert unk.counts.of_users.sum(axis=0).tolist()[2:5] == [tested // WORDS, 0, 0]
    assert hits / words == pytest.approx(found["configurations"]["own"]["summary"]["newcomers"]["all"]["value"]["mean"])
    assert own.parameters - before.parameters == 2 * 8 + 9 * 4 + 5 * 8  # the adapter (4,) of 8 cells
    withheld = [only_run(run_folder(folder, "own", draw))["positions"]["newcomers"] for draw in made.draws]
    assert sorted(withheld[0] + withheld[1]) == list(range(USERS))


def test_its_tables_are_in_the_report_and_fit_into_a_terminal(compared):
    found = collect(*compared)
    text = markdown(found)
    assert "### Suggestions of the next word" in text and "### EMR3 in %, by number of own samples" in text
    assert '<section id="next-words">' in page(found)
    (_, columns, rows), (_, numbers, _) = plain_tables(found)
    assert columns[0] == "Configuration" and [row[0] for row in rows] == ["Not personalized", "own", "OOV-as-UNK"]
    assert numbers == ("Configuration", "0", "5", "all")


def test_a_point_of_the_curve_has_no_counts_of_users(compared):
    made, folder = compared
    run = only_run(run_folder(folder, "own", made.draws[0]))
    assert run["curve"] and not any(name.startswith("user_c") or name == "user_values" for name in run["curve"][0])
