"""Lists all settings of a method, of its runs and of a corpus.

Used by `homespun settings`, `homespun data settings` and docs/settings.md. The lists are generated from the settings
classes, so that they are complete and up to date.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeAlias

from homespun.core.setting_descriptions import SettingDescription, describe_settings, format_value
from homespun.data import settings_of
from homespun.runs.settings import RunSettings
from homespun.runs.training import default_run_settings
from homespun.system.method_loading import method_module
from homespun.system.trust import named_by_user

Groups: TypeAlias = Mapping[str, Sequence[SettingDescription]]
PRIVACY = "privacy."


@named_by_user()
def method_settings(method: str) -> Groups:
    """The settings of a method, of its runs and of their privacy."""
    module = method_module(method)
    paper = getattr(module, "PAPER_RUN", {})
    every = describe_settings(RunSettings, defaults=default_run_settings(method), paper=paper)
    return {
        "method": describe_settings(module.Settings),
        "run": [one for one in every if not one.name.startswith(PRIVACY)],
        "privacy": [one for one in every if one.name.startswith(PRIVACY)],
    }


def corpus_settings(source: str) -> Groups:
    return {"corpus": describe_settings(settings_of(source))}


def to_json(groups: Groups) -> dict[str, Any]:
    return {name: [asdict(one) for one in settings] for name, settings in groups.items()}


def default_text(one: SettingDescription) -> str:
    if one.required:
        return "required"
    return "not set" if one.default is None else format_value(one.default)


def text_lines(settings: Sequence[SettingDescription], *, width: int) -> Iterator[str]:
    """Lines for a terminal: the setting with its default, the allowed values, and the meaning."""
    for one in settings:
        paper = [] if one.paper is None else [f"paper: {format_value(one.paper)}"]
        head = f"{one.name} ({default_text(one)})" if one.default is None else f"{one.name} = {default_text(one)}"
        notes = "; ".join([one.allowed, *paper])
        yield from textwrap.wrap(f"{head}  [{notes}]", width, subsequent_indent=" " * 8)
        yield from textwrap.wrap(one.meaning, width, initial_indent=" " * 4, subsequent_indent=" " * 4)


def markdown_lines(settings: Sequence[SettingDescription]) -> Iterator[str]:
    """A Markdown table."""
    papers = any(one.paper is not None for one in settings)
    yield "| Setting | Default | Values |" + (" Paper |" if papers else "") + " Meaning |"
    yield "|---|---|---|" + ("---|" if papers else "") + "---|"
    for one in settings:
        default = f"`{default_text(one)}`" if one.default is not None else default_text(one)
        paper = ("" if one.paper is None else format_value(one.paper),) if papers else ()
        yield "| " + " | ".join((f"`{one.name}`", default, one.allowed, *paper, one.meaning)) + " |"
