"""The report's two files: no link is followed, and two reports at once do not break each other."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from small_results import single

from homespun.report import html
from homespun.report.html import write_report


@pytest.fixture(autouse=True)
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """To draw them takes longer than all the rest."""
    monkeypatch.setattr(html, "plots", lambda _: {})


def test_a_link_in_place_of_a_draft_is_not_written_through(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in ("report.md", "report.html"):
        (tmp_path / f".{name}.part").symlink_to(victim)
    write_report(single(), tmp_path)
    assert victim.read_text() == "precious"


def test_two_reports_at_once_on_one_folder(tmp_path: Path) -> None:
    failed: list[BaseException] = []

    def write() -> None:
        try:
            for _ in range(10):
                write_report(single(), tmp_path)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert sorted(os.listdir(tmp_path)) == ["report.html", "report.md"]
