"""Tables in a narrow terminal."""

import io

from rich.console import Console

from homespun import console
from homespun.console import table


def printed(made, *, width):
    plain = Console(file=io.StringIO(), width=width, highlight=False, markup=False)
    plain.print(made)
    return plain.file.getvalue()


def test_columns_without_room_go_on_below_and_no_number_is_broken(monkeypatch):
    monkeypatch.setattr(console, "out", Console(file=io.StringIO(), width=40))
    numbers = [f"{place}7.51 ± 12.84" for place in range(1, 5)]
    made = printed(table("Newcomers", ["Own", "a, %", "b, %", "c, %", "d, %"], [["20", *numbers]]), width=40)
    assert all(number in made for number in numbers) and made.count("Own") == 2 and made.count("Newcomers") == 1
    assert max(map(len, made.splitlines())) <= 40
