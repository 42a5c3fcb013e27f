"""Write docs/settings.md: every setting with its default, its values, the paper's value and its meaning.

    python docs/settings.py

The tables are generated from the settings classes; a test checks that the page is up to date.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from homespun.cli.catalogue import corpus_settings, markdown_lines, method_settings
from homespun.core.setting_descriptions import SettingDescription, describe_settings
from homespun.data import builtin_names, hub
from homespun.experiments.experiment import Configuration, Experiment
from homespun.personalization.generation import Sampling
from homespun.pretraining.reply_training import ReplyPretrainSettings
from homespun.pretraining.training import PretrainSettings
from homespun.pretraining.word_training import NextWordPretrainSettings
from homespun.runs.settings import RunSettings
from homespun.system.method_loading import available_methods

PAGE = Path(__file__).with_suffix(".md")
PRETRAINING = (
    ("a small language model", "tiny", PretrainSettings),
    ("a reply model", "seq2seq", ReplyPretrainSettings),
    ("a next-word model", "nextword", NextWordPretrainSettings),
)
INTRODUCTION = """\
# Settings

`homespun settings METHOD` and `homespun data settings CORPUS` print these tables, with `--json` for programs. This page
is generated: `python docs/settings.py`.

Pass a setting to `homespun train` as `--set NAME=VALUE`, in the table `settings` of an experiment, or as a keyword
argument in Python: `train("furl", federation, lr=0.1)`. Pass settings of a corpus as `--data-set NAME=VALUE`, or in
Python as `load("dialects", users=200)`. Values are TOML; text needs no quotes. A dot selects a setting of a group:
`--set privacy.epsilon=8`.

"Paper" is the value that the method's paper states. Where the default differs, the method's page says why.
"""


def page() -> str:
    return INTRODUCTION + "".join(f"{line}\n" for line in _sections())


def _sections() -> Iterator[str]:
    every = describe_settings(RunSettings)
    run = [one for one in every if not one.name.startswith("privacy.")]
    yield from _section("Runs", run, note="A method may have other defaults; they are listed with the method.")
    privacy = [one for one in every if one.name.startswith("privacy.")]
    yield from _section("Differential privacy", privacy, note="Settings of a run; see [privacy](privacy.md).")
    for name in available_methods():
        groups = method_settings(name)
        yield from _section(f"Method `{name}`", groups["method"])
        own = [one for one, usual in zip(groups["run"], run, strict=True) if one != usual]
        if own:
            yield from ("", f"Runs of `{name}`:", "", *markdown_lines(own))
    for name in builtin_names():
        yield from _section(f"Corpus `{name}`", corpus_settings(name)["corpus"])
    yield from _section("Corpus from a file", corpus_settings("corpus.csv")["corpus"])
    yield from _section("Corpus from the Hugging Face hub", describe_settings(hub.Settings))
    experiment = describe_settings(Experiment, defaults={"name": None})
    yield from _section("Experiment file", experiment, note="Read by `homespun compare`.")
    yield from _section("Experiment file: `[configurations.NAME]`", describe_settings(Configuration))
    sampling = "Options of `homespun generate`, and `sampling` of a showcase."
    yield from _section("Continuations of a text", describe_settings(Sampling), note=sampling)
    for title, name, settings in PRETRAINING:
        note = f"For `homespun pretrain {name} --set NAME=VALUE`."
        yield from _section(f"Pre-training: {title}", describe_settings(settings), note=note)


def _section(title: str, settings: Sequence[SettingDescription], *, note: str = "") -> Iterator[str]:
    yield from ("", f"## {title}", "")
    if note:
        yield from (note, "")
    yield from markdown_lines(settings)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
