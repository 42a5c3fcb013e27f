"""The report's two files: symbolic links are not followed, and concurrent writers do not interfere."""

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
    """Drawing them takes longer than everything else."""
    monkeypatch.setattr(html, "plots", lambda _: {})


def test_a_symbolic_link_in_place_of_a_temporary_file_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in ("report.md", "report.html"):
        (tmp_path / f".{name}.part").symlink_to(victim)
    write_report(single(), tmp_path)
    assert victim.read_text() == "precious"


def test_concurrent_reports_in_one_folder(tmp_path: Path) -> None:
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
