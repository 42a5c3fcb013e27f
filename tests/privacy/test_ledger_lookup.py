"""A data set keeps its one ledger when its file is renamed, linked, compressed, converted or edited."""

import gzip
import json
import os
import shutil
import warnings

import pytest
from notes import ROUND, opened, rows, write_csv
from test_privacy_commands import homespun

from homespun.core.errors import RunError, SettingsError
from homespun.privacy.ledger import BudgetError, Ledger, LedgerError
from homespun.privacy.ledger_lookup import PrivacyWarning


@pytest.fixture
def data(tmp_path):
    """A data set of which a round was released."""
    made = write_csv(tmp_path / "notes.csv")
    with opened(tmp_path / "first", made) as run:
        run.step()
    return made


def written(data, name="notes.csv"):
    return Ledger(data.parent / "notes.csv.privacy.jsonl", name)


def as_jsonl(data):
    lines = [json.dumps({"text": text, "label": label, "user": user}) for user, text, label in reversed(rows())]
    (data.parent / "other.jsonl").write_text("\n".join(lines))
    return data.parent / "other.jsonl"


COPIES = {
    "renamed": lambda data: data.rename(data.parent / "renamed.csv"),
    "linked": lambda data: (os.link(data, data.parent / "linked.csv"), data.parent / "linked.csv")[1],
    "compressed": lambda data: (
        (data.parent / "notes.csv.gz").write_bytes(gzip.compress(data.read_bytes())),
        data.parent / "notes.csv.gz",
    )[1],
    "rewritten": as_jsonl,
}


@pytest.mark.parametrize("copy", COPIES.values(), ids=COPIES)
def test_the_same_rows_under_another_name_have_the_same_ledger(data, copy):
    same = copy(data)
    with pytest.warns(PrivacyWarning, match="used before under another name"), opened(data.parent / "run", same) as run:
        run.step()
    assert written(data).spent() == {ROUND: 2} and not same.with_name(same.name + ".privacy.jsonl").exists()
    assert "2 rounds" in homespun("privacy", "show", same)  # its path is registered now
    homespun("privacy", "budget", data, "--epsilon", 8, "--delta", 0.01, "--name", "notes.csv")
    with pytest.raises(BudgetError, match="which a run without privacy would exceed"):
        opened(data.parent / "plain", same, private=False)


def test_a_second_ledger_for_the_same_data_is_rejected(data):
    for place in (data, COPIES["linked"](data)):
        with pytest.raises(SettingsError, match=r"the ledger of this data set is .*notes.csv.privacy.jsonl, and"):
            opened(data.parent / "run", place, ledger=str(data.parent / "other.jsonl"))
    assert not (data.parent / "run" / "vault.sqlite").exists()


def edited(data):
    changed = [(user, text.replace("word 3", "a word 3"), label) for user, text, label in rows()]
    return write_csv(data.parent / "edited.csv", changed[5:])


def test_an_edited_copy_is_warned_about_and_can_be_counted_together(data):
    copy = edited(data)
    with pytest.warns(PrivacyWarning, match=r"at least about 8\d% of these rows are also in 'notes.csv'"):
        opened(data.parent / "plain", copy, private=False).close()
    with pytest.warns(PrivacyWarning, match=r"If this is an edited copy, use the same ledger: privacy.ledger="):
        opened(data.parent / "alone", copy).close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with opened(data.parent / "run", copy, ledger=str(written(data).path)) as run:
            run.step()
    assert written(data).spent() == {ROUND: 2}


def test_other_rows_are_another_data_set(data):
    other = write_csv(data.parent / "other.csv", rows(users=range(20, 28)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened(data.parent / "run", other).close()
    with pytest.raises(RunError, match=r"ledger of 'notes.csv', not of 'other.csv'"):
        opened(data.parent / "other", other, ledger=str(written(data).path))


def test_a_missing_ledger_is_an_error_until_it_is_reset_by_name(data):
    written(data).path.unlink()
    with pytest.raises(LedgerError, match=r"the ledger of .* is missing.*homespun privacy reset"):
        opened(data.parent / "run", data)
    with pytest.warns(PrivacyWarning, match="This run without privacy is not recorded"):
        opened(data.parent / "plain", data, private=False).close()
    assert "is missing" in homespun("privacy", "show", data, fails=LedgerError)
    homespun("privacy", "reset", data, "--name", "notes.csv", "--reason", "an experiment of long ago")
    with opened(data.parent / "run", data) as run:
        run.step()
    assert written(data).spent() == {ROUND: 1}


def test_a_truncated_ledger_is_an_error(data):
    path = written(data).path
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(LedgerError, match="the last line that was written is missing"):
        opened(data.parent / "run", data)


def test_data_and_ledger_may_move_together(data):
    (data.parent / "there").mkdir()
    moved = data.rename(data.parent / "there" / "notes.csv")
    path = written(data).path.rename(data.parent / "there" / "notes.csv.privacy.jsonl")
    for name in ("run", "again"):
        with opened(data.parent / name, moved) as run:
            run.step()
    assert Ledger(path, "notes.csv").spent() == {ROUND: 3} and "3 rounds" in homespun("privacy", "show", moved)


def test_two_ledgers_are_joined_and_common_lines_count_once(data):
    (data.parent / "copy").mkdir()
    copy = shutil.copy(data, data.parent / "copy" / "notes.csv")
    other = Ledger(copy.with_name("notes.csv.privacy.jsonl"), "notes.csv")
    shutil.copy(written(data).path, other.path)
    other.debit(ROUND, run="elsewhere")
    written(data).debit(ROUND, run="here")
    with pytest.raises(SettingsError, match=r"has two ledgers.*homespun privacy join"):
        opened(data.parent / "run", copy)
    assert "1 lines of" in homespun("privacy", "join", data, other.path, "--name", "notes.csv")
    with pytest.warns(PrivacyWarning), opened(data.parent / "run", copy) as run:
        run.step()
    assert written(data).spent() == {ROUND: 4} and not other.path.exists()


def test_the_register_does_not_reveal_the_data(data):
    files = list((data.parent / ".own" / "homespun" / "ledgers").iterdir())
    assert len(files) == 2 and all(file.stat().st_mode & 0o777 == 0o600 for file in files)
    for file in files:
        content = file.read_bytes()
        assert b"word" not in content and b"u3" not in content


def test_a_built_in_corpus_is_recognized_by_its_name(tmp_path):
    with opened(tmp_path / "run", "dialects", filters={"users": 8}, ledger=str(tmp_path / "one.jsonl")) as run:
        run.step()
    with pytest.raises(SettingsError, match="the ledger of this data set is"):
        opened(tmp_path / "other", "dialects", filters={"users": 9}, ledger=str(tmp_path / "two.jsonl"))
    assert "1 rounds" in homespun("privacy", "show", "dialects")


def test_without_a_home_folder_a_plain_run_trains_and_a_private_one_is_rejected(tmp_path, monkeypatch):
    data = write_csv(tmp_path / "notes.csv")
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a user whom the system does not know
    with opened(tmp_path / "plain", data, private=False) as run:
        run.step()
    with (
        opened(tmp_path / "run", data) as run,
        pytest.raises(LedgerError, match="set XDG_DATA_HOME to a writable folder"),
    ):
        run.step()
    assert not (tmp_path / "~").exists() and not written(data).spent()  # no debit without a release
