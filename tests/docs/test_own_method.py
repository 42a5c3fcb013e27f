"""The example of `docs/your-first-method.md`: it keeps the contract, and the page shows its code as it is."""

import re
from pathlib import Path

import pytest

from homespun import evaluate, load, train
from homespun.testing.contract import check_method

ROOT = Path(__file__).parents[2]
EXAMPLE, PAGE = ROOT / "examples" / "own_method.py", ROOT / "docs" / "your-first-method.md"


def test_the_page_shows_the_file():
    code, page = EXAMPLE.read_text(encoding="utf-8"), PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(blocks) >= 6
    assert [block for block in blocks if block not in code] == []


def test_the_table_is_that_of_the_record(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(ROOT / "docs")
    import records

    found = records.comparison("first-method")
    ours, one = (found["configurations"][key]["summary"] for key in ("fedper", "fedavg"))
    own = found["controls"]["summary"]["own_majority"]

    def text(spread):
        return f"{100 * spread['value']['mean']:.1f} ± {100 * spread['value']['std']:.1f} %"

    rows = [
        [text(ours["test"]), text(ours["newcomers"]["5"]), text(ours["newcomers"]["all"])],
        [text(one["test"]), *[text(one["newcomers"]["0"])] * 2],  # nothing is personalized
        [text(own)],
    ]
    page = PAGE.read_text(encoding="utf-8")
    assert [row for row in rows if f"| {' | '.join(row)} |" not in page] == []


@pytest.mark.system
def test_the_example_keeps_the_contract():
    assert "wire" in check_method(str(EXAMPLE)).passed


def test_the_example_learns_what_one_model_for_all_cannot():
    federation = load("dialects", users=16, examples=60, groups=2, classes=4)
    settings = {"rounds": 6, "cohort": "all", "workers": 0, "evaluate_every": 6}
    with train(str(EXAMPLE), federation, **settings) as ours, train("fedavg", federation, **settings) as one:
        assert evaluate(ours).headline[1] > evaluate(one).headline[1] + 0.1
