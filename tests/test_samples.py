"""The same opening by one person in every setting and by several people in one, always the same."""

import io

import pytest
from rich.cells import cell_len
from rich.console import Console
from spoken_corpus import train_small

from homespun.samples import print_showcase, showcase, showcase_markdown


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with train_small(tmp_path_factory.mktemp("samples")) as made:
        yield made


def test_one_person_everywhere_and_several_people_in_one_setting(run):
    samples = showcase(run, ["We must", "The people"], max_tokens=12)
    found = [(one.opening, one.user, one.context, one.used) for one in samples[:5]]
    assert found == [
        ("We must", "Abraham Lincoln", "spoken", False),  # the only one who never used a setting
        ("We must", "Abraham Lincoln", "written", True),
        ("We must", "John F. Kennedy", "written", True),
        ("We must", "George W. Bush", "written", True),
        ("We must", "George H. W. Bush", "written", True),
    ]
    assert [one.opening for one in samples] == ["We must"] * 5 + ["The people"] * 5
    assert samples == showcase(run, ["We must", "The people"], max_tokens=12)
    chosen = showcase(run, ["We"], person="kennedy", people=["lincoln"], context="spoken", max_tokens=3)
    assert [(one.user, one.context) for one in chosen] == [
        ("John F. Kennedy", "spoken"), ("John F. Kennedy", "written"), ("Abraham Lincoln", "spoken"),
    ]  # fmt: skip


def test_it_fits_80_columns_and_becomes_markdown(run):
    samples = showcase(run, ["We must"], max_tokens=60, until="end")
    stream = io.StringIO()
    print_showcase(samples, Console(file=stream, width=80, markup=False))
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("We must ...") and max(map(cell_len, lines)) <= 80
    assert "(never used)" in stream.getvalue()
    markdown = showcase_markdown(samples).splitlines()
    assert markdown[:2] == ["| who | setting | opening | continues |", "| --- | --- | --- | --- |"]
    assert len(markdown) == 2 + 5 and markdown[2].startswith("| Abraham Lincoln | spoken (never used) | We must |")
