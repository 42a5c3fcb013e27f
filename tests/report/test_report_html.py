"""The page is complete, safe, readable offline, and has the same numbers as the Markdown."""

from __future__ import annotations

import json
import os
import re
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from plotly.offline import get_plotlyjs
from small_results import a_map, results, single

from homespun.core.errors import DiskError
from homespun.report import html
from homespun.report.html import page, write_report
from homespun.report.tables import markdown

LIBRARY = "/* plotly.js */"
EVIL = "</script><script>alert(1)</script>"


@pytest.fixture(autouse=True)
def small_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five megabytes of plotly.js in every page would only make these tests slow."""
    monkeypatch.setattr(html, "get_plotlyjs", lambda: LIBRARY)


@cache
def usual() -> str:
    return page(results())


def figures(text: str) -> dict[str, Any]:
    blocks = re.findall(r'<script type="application/json" id="([^"]+)">(.*?)</script>', text, re.DOTALL)
    return {name: json.loads(block) for name, block in blocks}


def test_it_has_the_same_numbers_as_the_markdown() -> None:
    rows = re.findall(r"<tr>(.*?)</tr>", usual(), re.DOTALL)
    cells = [[unescape(re.sub("<[^>]+>", "", cell)) for cell in re.findall(r"<t[dh].*?</t[dh]>", row)] for row in rows]
    lines = [line[2:-2] for line in markdown(results()).splitlines() if line.startswith("| ") and "---" not in line]
    written = [[cell.replace("**", "").replace("\\", "") for cell in line.split(" | ")] for line in lines]
    assert cells == written
    assert ["Personalized FL", "62.41 ± 1.00", "62.41 ± 1.00", "25.00 ± 1.00", "62.41 ± 1.00"] in cells


def test_the_best_value_is_bold_and_numbers_are_on_the_right() -> None:
    assert '<td class="number"><strong>62.41 ± 1.00</strong></td>' in usual()


def test_every_section_and_figure_is_present() -> None:
    text = usual()
    assert re.findall(r'<section id="(\w+)">', text) == [
        "result", "curves", "users", "newcomers", "projections", "communication", "data", "runs",
    ]  # fmt: skip
    assert list(figures(text)) == [
        "curves-0",
        "users-0",
        "newcomers-0",
        "projections-0",
        "projections-1",
        "communication-0",
        "communication-1",
    ]
    assert all(figure["data"] for figure in figures(text).values())


def test_a_single_run_has_fewer_sections() -> None:
    text = page(single())
    assert re.findall(r'<section id="(\w+)">', text) == ["result", "curves", "users", "communication", "data", "runs"]
    assert list(figures(text)) == ["curves-0", "users-0", "communication-0", "communication-1"]


def test_it_claims_never_uploaded_and_nothing_stronger() -> None:
    text = unescape(usual())
    assert "'never uploaded', not 'cannot be inferred'" in text
    assert "docs/threat-model.md" in text


def test_private_bytes_are_shown_as_zero() -> None:
    texts = [trace["text"] for trace in figures(usual())["communication-1"]["data"] if trace["type"] == "scatter"]
    assert texts == [[" 1.0 kB", " 0 B", " 24 B", " 0 B"]] * 2


def test_nothing_is_loaded_from_elsewhere() -> None:
    text = usual()
    assert not re.findall(r"""(?:src|href|action)\s*=\s*["'](?!#)""", text)
    assert not re.findall(r"@import|url\(|https?:", text)
    assert "default-src 'none'" in text


def test_plotly_is_included_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "get_plotlyjs", get_plotlyjs)
    text = page(results())
    assert text.count(get_plotlyjs()) == 1
    assert text.count("<script>") == 2  # the library, and the script that draws


def test_text_from_the_data_is_escaped() -> None:
    clean = usual().count("<script")
    found = results()
    found["name"] = found["data"]["name"] = found["data"]["source"] = EVIL
    found["versions"]["homespun"] = EVIL
    for configuration in found["configurations"].values():
        configuration["title"] = configuration["method"] = EVIL
        for run in configuration["runs"]:
            run["maps"] = a_map([EVIL, "<b>x</b>", EVIL, None, '"quoted"'])
            run["released"].append(EVIL)
            run["settings"][EVIL] = EVIL
            run["rounds"][0]["up_bytes"][EVIL] = 3
    text = page(found)
    assert "alert(1)" in text
    assert "<script>alert" not in text
    assert "<b>" not in text
    added = sum(name.startswith("projections-") for name in figures(text)) - 2
    assert text.count("<script") == clean + added  # only the added figures
    assert all("<b>x" not in json.dumps(figure) for figure in figures(text).values())


def test_without_a_known_group_projections_show_the_rate_of_positives_or_the_label() -> None:
    found = results()
    run = found["configurations"]["personal"]["runs"][0]
    run["maps"] = {**a_map([None] * 4), "of": 1_000_000, "label": ["a", "b", "b", "a"]}
    text = page(found)
    assert "most frequent label" in text
    assert "4 of 1,000,000 users, sampled" in text
    run["maps"]["positive_rate"] = [0.0, 0.5, None, 1.0]
    unknown, known = figures(page(found))["projections-0"]["data"]
    assert known["marker"]["color"] == [0.0, 50.0, 100.0]
    assert unknown["x"] == [2.0]


def test_more_than_twenty_groups_are_grey() -> None:
    found = results()
    found["configurations"]["personal"]["runs"][0]["maps"] = a_map([f"g{place}" for place in range(22)])
    text = page(found)
    assert len(figures(text)["projections-0"]["data"]) == 21
    assert "</span>other</li>" in text


def test_missing_values_leave_gaps() -> None:
    found = single()
    run = found["configurations"]["fedavg"]["runs"][0]
    run["curve"][0]["value"] = None
    run["test"]["user_values"] = []
    found["configurations"]["fedavg"]["summary"]["test"]["user_worst_tenth"] = {"mean": None, "std": None}
    shown = figures(page(found))
    assert shown["curves-0"]["data"][0]["y"] == [35.0]


def test_noise_does_not_fill_a_figure() -> None:
    found = single()
    for place, point in enumerate(found["configurations"]["fedavg"]["runs"][0]["curve"]):
        point["value"] = 0.35 + 0.01 * place
    low, high = figures(page(found))["curves-0"]["layout"]["yaxis"]["range"]
    assert (low, high) == pytest.approx((30.0, 41.0))


def test_a_reader_never_sees_half_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert write_report(single(), tmp_path) == tmp_path / "report.html"
    before = (tmp_path / "report.html").read_bytes()

    def full_disk(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(DiskError, match=r"report\.md: the disk is full\. Make room"):
        write_report(results(), tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["report.html", "report.md"]
    assert (tmp_path / "report.html").read_bytes() == before


def test_the_same_results_give_the_same_bytes(tmp_path: Path) -> None:
    first, second = (write_report(results(), tmp_path / name) for name in ("a", "b b"))
    assert first.read_bytes() == second.read_bytes()
