"""Lists of dicts, data frames, Arrow tables and Hugging Face data sets, as federations."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow
import pytest
from corpus_files import ROWS, SECRET

import homespun
from homespun.core.errors import DataError, InputError, RunError, SettingsError, UnknownNameError
from homespun.data import Columns
from homespun.data.table import TableFederation


class Dataset:
    """The part of a Hugging Face data set's interface that reading needs."""

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self.columns_of, self.column_names = columns, list(columns)

    def select_columns(self, names: list[str]) -> Dataset:
        return Dataset({name: self.columns_of[name] for name in names})

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for cells in zip(*self.columns_of.values(), strict=True):
            yield dict(zip(self.column_names, cells, strict=True))


def columns_of(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]}


FORMS = {
    "list": lambda rows: rows,
    "generator": lambda rows: (row for row in rows),
    "frame": pandas.DataFrame,
    "frame of objects": lambda rows: pandas.DataFrame(rows).astype(object),
    "arrow table": pyarrow.Table.from_pylist,
    "data set": lambda rows: Dataset(columns_of(rows)),
}


def load(data: Any, **options: Any) -> TableFederation:
    federation = homespun.load(data, **options)
    assert isinstance(federation, TableFederation)
    return federation


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_federation(form: str) -> None:
    federation = load(FORMS[form](ROWS))
    assert list(federation.users) == ["bo", "al"]
    assert (federation.labels, federation.contexts) == (("a", "b"), ("home", "work"))
    assert federation.texts == ("hello", "bye", "good night")
    listed = load(ROWS)
    assert (federation.fingerprint, federation.name) == (listed.fingerprint, listed.name)
    assert federation.fingerprint != load(ROWS[:2]).fingerprint
    assert federation.fingerprint != load(FORMS[form](ROWS), max_users=1).fingerprint


@pytest.mark.parametrize("form", FORMS)
def test_columns_and_filters_are_those_of_files(form: str) -> None:
    rows = [{"who": user, "said": "x", "label": 1, "unused": SECRET} for user in (7, 7, 8)]
    federation = load(FORMS[form](rows), columns=Columns(user="who", text="said"), min_examples=2)
    assert (list(federation.users), federation.labels) == (["7"], ("1",))
    with pytest.raises(UnknownNameError) as caught:
        load(FORMS[form](rows), columns=Columns(user="whoo", text="said"))
    assert "no column 'whoo'. Did you mean 'who'? Columns: 'who', 'said', 'label', 'unused'." in str(caught.value)
    with pytest.raises(SettingsError, match=r"unknown setting 'min_example'\. Did you mean 'min_examples'"):
        load(FORMS[form](rows), min_example=2)


@pytest.mark.parametrize("form", ["list", "frame", "data set"])
def test_missing_cells_are_missing(form: str) -> None:
    rows = [{"user": "a", "text": "x", "label": "p"}, {"user": "b", "text": SECRET, "label": float("nan")}]
    with pytest.raises(DataError, match=r"row 2: no 'label'\. Either all examples have one or none\.") as caught:
        load(FORMS[form](rows))
    assert SECRET not in str(caught.value)


def test_a_column_without_values_counts_as_absent() -> None:
    frame = pandas.DataFrame({"user": ["a"], "text": ["x"], "label": [pandas.NA], "context": [pandas.NaT]})
    assert load(frame).labels == load(frame.to_dict("records")).labels == ()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.int64(7), "7"),
        (np.float64(0.5), "0.5"),
        (np.str_("a"), "a"),
        (np.bool_(True), "true"),
        (Decimal("1.50"), "1.50"),
        (date(2024, 1, 31), "2024-01-31"),
        (pandas.Timestamp("2024-01-31 12:00"), "2024-01-31 12:00:00"),
    ],
)
def test_labels_are_plain_text(value: Any, text: str) -> None:
    assert load([{"user": "a", "text": "x", "label": value}]).labels == (text,)


@pytest.mark.parametrize("value", [np.int64(7), np.bool_(True), Decimal("1.50"), date(2024, 1, 31)])
def test_texts_are_text(value: Any) -> None:
    with pytest.raises(DataError, match=r"row 1: 'text' is a [\w ]+\. Expected text\."):
        load([{"user": "a", "text": value}])


def test_a_frame_may_mix_kinds_and_have_any_index() -> None:
    frame = pandas.DataFrame({"user": [1, "b"], "text": ["x", "y"], "label": ["p", "q"]}, index=[5, 5])
    assert list(load(frame).users) == ["1", "b"]
    frame["label"] = frame["label"].astype("category")
    assert load(frame).labels == ("p", "q")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ([SECRET], "row 1: not a dict."),
        ([{"user": "a", "text": "b"}, (SECRET, SECRET)], "row 2: not a dict."),
        ([{"user": "a", "text": [SECRET]}], "row 1: 'text' is a list. Expected text."),
        ([{"user": "a", "text": SECRET.encode()}], "row 1: 'text' is a bytes. Expected text."),
        ([], "the corpus is empty"),
        ({"user": ["a"], "text": [SECRET]}, "a dict. Pass a list of dicts"),
        ({"train": Dataset({"user": ["a"], "text": [SECRET]})}, "a dict. Pass a list of dicts"),
        (5, "int: not a table."),
        (pandas.DataFrame([["a", SECRET, "b"]], columns=["user", "text", "text"]), "2 columns are named 'text'"),
        (pyarrow.table({"user": ["a"], "text": [[SECRET]]}), "'text' is a column of type list. Expected text."),
        (pyarrow.table([["a"], ["b"], ["c"]], names=["user", "text", "text"]), "2 columns are named 'text'"),
        (
            pandas.DataFrame({0: ["a"], 1: [SECRET]}),
            "no column 'user', but 2 whose names do not look like column names",
        ),
        (pandas.DataFrame({SECRET: ["a"], "said": ["b"]}), "no column 'user', but 2 whose names do not look like"),
    ],
)
def test_bad_data_are_refused_and_never_shown(data: Any, says: str) -> None:
    for give in (homespun.load, lambda bad: homespun.train("furl", bad, rounds=1)):
        with pytest.raises(InputError) as caught:
            give(data)
        assert says in str(caught.value)
        assert SECRET not in str(caught.value)


def test_a_long_text_is_not_a_source() -> None:
    with pytest.raises(UnknownNameError, match="a text of 40,000 characters, not a name"):
        homespun.load("secret " * 5714 + "xx")


SMALL = {"length": 8, "character_dim": 4, "lstm_dim": 4, "hidden_dim": 4, "user_dim": 2, "workers": 0, "rounds": 1}


def test_a_run_on_rows_is_reopened_with_the_rows(tmp_path: Path) -> None:
    rows = [{"user": user, "text": "x", "label": label} for user in "abc" for label in ("p", "q") for _ in range(3)]
    with homespun.train("furl", rows, folder=tmp_path, **SMALL) as run:
        trained = run.state
    with pytest.raises(RunError, match=r"Pass them again: reopen\(folder, federation=homespun\.load\(rows\)\)"):
        homespun.reopen(tmp_path)
    with homespun.reopen(tmp_path, federation=homespun.load(pandas.DataFrame(rows))) as run:
        assert run.state.round == trained.round == 1
    with homespun.reopen(tmp_path, federation=rows) as run:
        assert run.state.round == 1
    with pytest.raises(RunError, match="has changed since the run was trained on it"):
        homespun.reopen(tmp_path, federation=homespun.load(rows[1:]))


def test_train_takes_columns_for_rows_alone() -> None:
    rows = [{"who": user, "said": "x", "label": label} for user in "abc" for label in ("p", "q")]
    columns = Columns(user="who", text="said")
    with homespun.train("furl", rows, columns=columns, **SMALL) as run:
        assert len(run.federation.users) == 3
    with pytest.raises(SettingsError, match="columns: a federation is loaded already"):
        homespun.train("furl", homespun.load(rows, columns=columns), columns=columns, **SMALL)
