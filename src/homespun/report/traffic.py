"""Communication: bytes by role, privacy, and what clients release besides their parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

from homespun.report.score_tables import title_of
from homespun.report.table_model import MISSING, Column, Table, count_text, make_table, mean, shorten

ROLES = ("federated", "keyed", "statistics", "private")
MEANINGS = {
    "parameter updates": "the change that local training made to the shared parameters",
    "weight": "the weight of the update in the average, usually the client's number of training examples",
    "loss": "the training loss of each phase, summed over the examples of all local steps",
    "examples": "the number of examples in all local steps; an example counts each time it is used",
    "a step of the map": "the update of the map's nodes; without noise, the embedding can be computed from it",
    "a step of the map and its score": "the update of the map's nodes and the distance to the nearest one; the "
    "embedding can be computed from it",
    "direction of the head's gradient": "where the centroid of the client's cluster moves; without noise, it reveals "
    "which labels the user gives",
    "which cluster it is in": "the head that the client trains, and so which users belong together",
    "BLEU counts": "after training, to tune a reranker: matching n-grams of generated and real replies, summed over a "
    "client's replies",
    "place on the old and the new map": "the nearest node of both maps, and so which users belong together",
}
EVERYTHING = "all training examples"
INSECURE = "INSECURE: noise and cohorts are derived from the seed and protect no user"
ZERO_OUT = (
    "Adjacency is zero-out: neighbouring data sets have the same list of users, labels, contexts and profile values, "
    "which are public, and differ in one user, who has no examples in one of them. Epsilon covers all rounds of a run; "
    "for several seeds, the largest is shown."
)
UNNOISED = (
    "Epsilon covers the shared model and nothing else on this page: scores, curves, projections, counts of examples "
    "and the data's fingerprint are computed from users' data without noise and must not be released."
)
NOISED = (
    "Noise is added to every released number, including keyed rows that no client used; without noise, a sum would "
    "reveal which rows clients use. Private parameters need no noise: they are never released."
)
PROMISE = (
    "Private parameters are never uploaded: the message that a client sends has no field for them. This means "
    "'never uploaded', not 'cannot be inferred': an observer who sees a single client's update in the clear can "
    "reconstruct much of what that client keeps private. The threat model (docs/threat-model.md in homespun's "
    "sources) says what is promised, what is not, and what differential privacy or secure aggregation would add."
)


@dataclass(frozen=True)
class Traffic:
    """Mean bytes per round, over rounds and seeds."""

    role: str
    down_per_client: float | None
    up_per_client: float | None
    down_per_round: float | None
    up_per_round: float | None


def is_pooled(configuration: Mapping[str, Any]) -> bool:
    """Whether the server holds all users' examples, so that there are no clients and nothing is sent."""
    run = configuration["runs"][0]
    return bool(run.get("pooled", run.get("method") == "central"))


def traffic_of(configuration: Mapping[str, Any]) -> list[Traffic]:
    """Bytes by role; empty for a configuration without rounds."""
    rounds = [entry for run in configuration["runs"] for entry in run.get("rounds") or []]
    if not rounds:
        return []
    named = {role for entry in rounds for side in ("down_bytes", "up_bytes") for role in entry[side]}
    ordered = [*(role for role in ROLES if role in named or role == "private"), *sorted(named - set(ROLES))]
    return [_traffic(role, rounds) for role in ordered]


def _traffic(role: str, rounds: Sequence[Mapping[str, Any]]) -> Traffic:
    def whole(side: str) -> float | None:
        return mean(entry[side].get(role, 0) for entry in rounds)

    def per_client(side: str) -> float | None:
        return mean(entry[side].get(role, 0) / entry["clients"] for entry in rounds if entry["clients"])

    return Traffic(role, per_client("down_bytes"), per_client("up_bytes"), whole("down_bytes"), whole("up_bytes"))


def federated_traffic(results: Mapping[str, Any]) -> dict[str, list[Traffic]]:
    """Bytes by role of every configuration that has clients and rounds."""
    found = {
        key: traffic_of(configuration)
        for key, configuration in results.get("configurations", {}).items()
        if not is_pooled(configuration)
    }
    return {key: rows for key, rows in found.items() if rows}


def traffic_table(results: Mapping[str, Any]) -> Table | None:
    found = federated_traffic(results)
    if not found:
        return None
    rows = [
        [
            title_of(results, key),
            shorten(row.role),
            *map(count_text, (row.down_per_client, row.up_per_client, row.down_per_round, row.up_per_round)),
        ]
        for key, traffic in found.items()
        for row in traffic
    ]
    columns = [
        Column("Configuration"),
        Column("Role"),
        Column("Client down", number=True),
        Column("Client up", number=True),
        Column("Cohort down", number=True),
        Column("Cohort up", number=True),
    ]
    note = (
        "Bytes per round, averaged over rounds and seeds, for one client and for the whole cohort. Payload only, "
        "without network framing. Federated parameters are shared by all users; keyed parameters are rows of a table "
        "on the server; private parameters belong to one user. With central noise, the bytes are those of the expected "
        "cohort with every row for every client: how many clients took part, and what they sent, is not disclosed."
    )
    return make_table(columns, rows, caption="Bytes by role per round", note=note)


def privacy_table(results: Mapping[str, Any]) -> Table | None:
    """The privacy of what was released, by role; None if no configuration is private."""
    rows = []
    for key, configuration in results.get("configurations", {}).items():
        # All seeds have the same settings, but a run that was killed and resumed has released more.
        private = [run["privacy"] for run in configuration["runs"] if run.get("privacy")]
        found = max(private, key=lambda run: run["epsilon"], default=None)
        if found is None:
            rows.append([title_of(results, key), "without noise", "without noise", "never", MISSING, MISSING, MISSING])
            continue
        noised, of_statistics = (f"{found['noise']} noise, {norms:.3g} clip norms" for norms in _noise(found))
        statistics = "not sent" if found["statistics_clip"] is None else of_statistics
        stamp = f"{found['releases']} releases at sampling rate {found['rate']:.2%}"
        stamp += (
            f"; treated as public: the result of {' and '.join(found['public_filters'])}"
            if found.get("public_filters")
            else ""
        )
        stamp = INSECURE if found["insecure"] else stamp
        title, all_its_runs = title_of(results, key), _cost(configuration.get("privacy"))
        rows.append([title, noised, statistics, "never", _cost(found), stamp, all_its_runs])
    whole = results.get("privacy") or {}
    if all(row[4] == MISSING for row in rows):
        return None
    names = ["Configuration", "Federated and keyed", "Loss and examples", "Private", "Epsilon", "Accounting"]
    if whole.get("runs", 1) > 1:
        names.append("Epsilon of all its runs")
        rows.append([f"All {whole['runs']} private runs", *[MISSING] * 5, _cost(whole)])
    made = [row[: len(names)] for row in rows]
    note = " ".join(part for part in (total_privacy_cost_text(results), ZERO_OUT, UNNOISED, NOISED) if part)
    return make_table([Column(name) for name in names], made, caption="Differential privacy", note=note)


def _cost(found: Mapping[str, Any] | None) -> str:
    if not found:
        return MISSING
    return f"{found['epsilon']:.3f} at delta {found['delta']:g} (RDP {found['epsilon_rdp']:.3f})"


def total_privacy_cost_text(results: Mapping[str, Any]) -> str:
    """The cost of all private runs together, if there are several: all of them use the same users' data."""
    found = results.get("privacy") or {}
    if found.get("runs", 1) < 2:
        return ""
    plain = found["runs_without_privacy"]
    rest = f" The {plain} runs without privacy have no bound." if plain > 1 else ""
    rest = " The run without privacy has no bound." if plain == 1 else rest
    return f"All {found['runs']} private runs together cost epsilon {_cost(found)}.{rest}"


def _noise(privacy: Mapping[str, Any]) -> tuple[float, float]:
    """Noise on parameters and on statistics, in clip norms. Results without `noise_norms` are from runs in which all
    groups had equal shares."""
    if "noise_norms" in privacy:
        return privacy["noise_norms"]["parameters"], privacy["noise_norms"]["statistics"]
    groups = len(privacy["clip"]) + (privacy["statistics_clip"] is not None)
    return (privacy["noise_multiplier"] * sqrt(groups),) * 2


def released_table(results: Mapping[str, Any]) -> Table:
    """What clients release, by name, and in which configurations."""
    released_by: dict[str, list[str]] = {}
    for key, configuration in results.get("configurations", {}).items():
        names = [EVERYTHING] if is_pooled(configuration) else configuration["runs"][0].get("released") or []
        for name in names:
            released_by.setdefault(name, []).append(title_of(results, key))
    meanings = {**MEANINGS, EVERYTHING: _everything(results)}
    rows = [
        [shorten(name), ", ".join(titles), meanings.get(name, "declared by the method")]
        for name, titles in released_by.items()
    ]
    note = "Nothing else is uploaded: a statistic that the method does not declare is rejected."
    columns = [Column("Released"), Column("By"), Column("Meaning")]
    return make_table(columns, rows, caption="What is released", note=note)


def _everything(results: Mapping[str, Any]) -> str:
    data = results.get("data") or {}
    characters = (data.get("check") or {}).get("characters")
    size = f", {count_text(characters)} characters" if characters else ""
    parts = "text and label" if data.get("labels") else "its whole text"
    return f"central training: the server has every training example, {parts} (whole corpus{size})"
