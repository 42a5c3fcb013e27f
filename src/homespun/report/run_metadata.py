"""Metadata of the runs: data, settings, seeds, versions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from homespun.report.score_tables import folds_of, seeds_of, title_of
from homespun.report.table_model import (
    MISSING,
    Column,
    Table,
    count_text,
    finite,
    make_table,
    mean,
    mean_std_text,
    percent_text,
    shorten,
)
from homespun.report.traffic import is_pooled

_ELSEWHERE = {"seed", "fold"}  # these differ between the runs of one configuration


def sampled_users(results: Mapping[str, Any]) -> str:
    """How many users were sampled for evaluation; empty if all were evaluated."""
    everyone = finite((results.get("data") or {}).get("users"))
    for configuration in results.get("configurations", {}).values():
        at_most = finite((configuration["runs"][0].get("run") or {}).get("evaluate_users"))
        if everyone is not None and at_most is not None and everyone > at_most:
            return f"{count_text(at_most)} of {count_text(everyone)} users, sampled"
    return ""


def data_table(results: Mapping[str, Any]) -> Table:
    data = results.get("data") or {}
    check = data.get("check") or {}
    inspected = f" (from {count_text(check.get('inspected_users'))} users, sampled)" if check.get("sampled") else ""
    per_user, folds = check.get("examples_per_user") or {}, folds_of(results)
    facts = [
        ("Corpus", shorten(data.get("name", MISSING))),
        ("Source", shorten(data.get("source", MISSING))),
        ("Settings", _value(data.get("settings") or None)),
        ("Columns", _value(data.get("columns") or None)),
        ("Fingerprint", shorten(data.get("fingerprint", MISSING), 17)),
        ("Participants of the first fold" if folds else "Participants", count_text(data.get("users"))),
        ("Newcomers, never in training", count_text(data.get("newcomers"))),
        *([("Folds, each with different newcomers", count_text(folds))] if folds else []),
        ("Evaluated", sampled_users(results) or "all users with enough examples"),
        ("Tested on", _tested(results)),
        ("Examples", count_text(check.get("examples")) + inspected),
        ("Examples per user", _quantiles(per_user)),
        *_labels(data),
        *_contexts(data),
        ("Users with too few examples to be evaluated", count_text(check.get("users_without_evaluation"))),
        ("Users left out", _left_out(check.get("left_out_users"))),
        ("Examples left out", _left_out(check.get("left_out_examples"))),
        *_characters(check),
    ]
    note = " ".join(shorten(line, 400) for line in check.get("policy") or [])
    return make_table([Column("Property"), Column("Value", number=True)], facts, note=note)


def _tested(results: Mapping[str, Any]) -> str:
    """Users and examples in the first configuration's test; a language model skips utterances below four tokens."""
    for configuration in results.get("configurations", {}).values():
        found = configuration["runs"][0].get("test") or {}
        return f"{count_text(found.get('users'))} users with {count_text(found.get('examples'))} examples"
    return MISSING


def _characters(check: Mapping[str, Any]) -> list[tuple[str, str]]:
    if not check.get("characters"):  # images
        return []
    return [
        ("Characters", count_text(check.get("characters"))),
        ("Distinct characters", count_text(check.get("distinct_characters"))),
    ]


def _labels(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    check = data.get("check") or {}
    labels = check.get("labels", len(data.get("labels") or []))
    if not labels:
        return [("Labels", "none")]
    return [
        ("Labels", count_text(labels)),
        ("Share of the most frequent label, %", percent_text(check.get("majority_label_share"))),
        ("Share of a user's own most frequent label, %", percent_text(check.get("own_majority_share"))),
    ]


def _contexts(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    if not data.get("contexts"):
        return [("Contexts", "none")]
    several = (data.get("check") or {}).get("users_with_several_contexts")
    return [("Contexts", count_text(data["contexts"])), ("Users with several contexts", count_text(several))]


def _quantiles(found: Mapping[str, Any]) -> str:
    if not found:
        return MISSING
    median, low, high = (count_text(found.get(name)) for name in ("median", "min", "max"))
    return f"median {median}, from {low} to {high}"


def _left_out(found: Mapping[str, Any] | None) -> str:
    if not found:
        return "0"
    return ", ".join(f"{count_text(number)} ({shorten(reason)})" for reason, number in found.items())


def runs_table(results: Mapping[str, Any]) -> Table:
    rows = []
    for key, configuration in results.get("configurations", {}).items():
        rounds = [entry for run in configuration["runs"] for entry in run.get("rounds") or []]
        seconds = configuration["summary"].get("seconds_per_round") or {}
        average, std = finite(seconds.get("mean")), finite(seconds.get("std"))
        rows.append([
            title_of(results, key),
            shorten(configuration.get("method", MISSING)),
            count_text(configuration["summary"].get("rounds")),
            count_text(mean(entry["clients"] for entry in rounds)),
            mean_std_text(average, std, digits=3),
        ])  # fmt: skip
    columns = [
        Column("Configuration"),
        Column("Method"),
        Column("Rounds", number=True),
        Column("Clients per round", number=True),
        Column("Seconds per round", number=True),
    ]
    central = any(is_pooled(configuration) for configuration in results.get("configurations", {}).values())
    note = "Central training has one client, the server; each of its rounds is an epoch." if central else ""
    return make_table(columns, rows, caption="Runs", note=note)


def versions_table(results: Mapping[str, Any]) -> Table:
    rows = [[shorten(name), shorten(found)] for name, found in (results.get("versions") or {}).items()]
    rows.append(["seeds", ", ".join(str(seed) for seed in seeds_of(results)) or MISSING])
    rows.append(["schema of results.json", shorten(results.get("schema", MISSING))])
    return make_table([Column("Component"), Column("Version", number=True)], rows, caption="Versions and seeds")


def settings_tables(results: Mapping[str, Any]) -> list[Table]:
    """The settings in which configurations differ, side by side; then the settings that they share."""
    resolved = {key: _settings(found["runs"][0]) for key, found in results.get("configurations", {}).items()}
    names = list(dict.fromkeys(name for settings in resolved.values() for name in settings))
    values = {name: [settings.get(name, MISSING) for settings in resolved.values()] for name in names}
    differing = [[name, *row] for name, row in values.items() if len(set(row)) > 1]
    shared = [[name, row[0]] for name, row in values.items() if len(set(row)) == 1]
    found = []
    if differing:
        columns = [Column("Setting"), *(Column(title_of(results, key), number=True) for key in resolved)]
        found.append(make_table(columns, differing, caption="Settings that differ"))
    if shared:
        caption = "Settings shared by all configurations" if len(resolved) > 1 else "Settings"
        found.append(
            make_table([Column("Setting"), Column("Value", number=True)], shared, caption=caption, collapsed=True)
        )
    return found


def _settings(run: Mapping[str, Any]) -> dict[str, str]:
    """Settings of run and method, each with a prefix: both may use one name (`epochs`) with different meanings."""
    of_run = {f"run.{name}": _value(value) for name, value in (run.get("run") or {}).items() if name not in _ELSEWHERE}
    return of_run | {f"method.{shorten(name)}": _value(value) for name, value in (run.get("settings") or {}).items()}


def _value(value: Any) -> str:
    if value is None:
        return MISSING
    return shorten(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str), 120)
