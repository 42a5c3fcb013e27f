import pytest

from homespun.core.errors import SettingsError
from homespun.core.settings import Settings, parse, parse_overrides


class Small(Settings):
    rate: float = 0.1
    cohort: int = 10


def test_override_values_are_toml_or_else_text():
    overrides = ["rate=0.5", "users=none", "name = 'x y'", "sizes=[1, 2]", "empty=", "path=a=b"]
    assert parse_overrides(overrides) == {
        "rate": 0.5, "users": "none", "name": "x y", "sizes": [1, 2], "empty": "", "path": "a=b",
    }  # fmt: skip


@pytest.mark.parametrize("wrong", ["rate", "=1", " =1"])
def test_an_override_without_a_name_or_value(wrong):
    with pytest.raises(SettingsError, match="not of the form name=value"):
        parse_overrides([wrong])


class Inner(Settings):
    clip: float = 1.0


class Outer(Settings):
    rate: float = 0.1
    inner: Inner | None = None


def test_a_dot_addresses_a_nested_group():
    values = parse_overrides(["rate=1", "inner.clip=2.5"])
    assert parse(Outer, values, where="run") == Outer(rate=1, inner=Inner(clip=2.5))
    with pytest.raises(
        SettingsError, match=r"unknown setting 'inner.clp'. Did you mean 'inner.clip'\? Known: inner.clip\."
    ):
        parse(Outer, parse_overrides(["inner.clp=1"]), where="run")
    with pytest.raises(SettingsError, match="inner was already set as a whole"):
        parse_overrides(["inner=1", "inner.clip=2"])


def test_all_faults_are_reported_with_the_nearest_name():
    with pytest.raises(SettingsError) as caught:
        parse(Small, {"raet": 1, "cohort": "many"}, where="run")
    message = str(caught.value)
    assert message.startswith("run: 2 faults:")
    assert "unknown setting 'raet'. Did you mean 'rate'?" in message
    assert "cohort: input should be a valid integer" in message and "'many'" in message


class Scored(Settings):
    added_later = ("width",)
    evaluation_only = ("prompts",)

    rate: float = 0.1
    width: int = 3
    prompts: int = 200


def test_how_a_run_is_evaluated_does_not_identify_it():
    assert Scored(prompts=5).identity() == {"rate": 0.1}
    assert Scored(width=4).identity() == {"rate": 0.1, "width": 4}
