"""What travelled: bytes by role, and what a client tells beside its parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

from homespun.report.score_tables import title_of
from homespun.report.table_model import MISSING, Column, Table, count, mean, shorten, table

ROLES = ("federated", "keyed", "statistics", "private")
MEANINGS = {
    "parameter updates": "what local training changed in the shared parameters",
    "weight": "how much an update counts in the average, usually the client's number of training examples",
    "loss": "what the client's local steps had to lower, summed over the examples of all of them, every phase's own",
    "examples": "how many examples the client's steps took together, each as often as it was taken",
    "a step of the map": "where the map's nodes would move; who sees it without noise can work out the embedding",
    "a step of the map and its score": "where the map's nodes would move, and how near the nearest is; who sees it "
    "can work out the embedding",
    "direction of the head's gradient": "towards which centroid a cluster moves; who sees it without noise knows which "
    "labels somebody gives",
    "which cluster it is in": "whose head it trains, so who belongs together",
    "place on the old and the new map": "which node of both maps is nearest, so who belongs together",
}
EVERYTHING = "all training examples"
INSECURE = "INSECURE: noise and cohorts came from the seed and protect nobody"
ZERO_OUT = (
    "Adjacency is zero-out: neighbouring data sets have the same list of users, which is public, as are labels and "
    "contexts, and all examples of one user are replaced by none. Epsilon is that of all rounds of a run; of several "
    "seeds, the costliest."
)
UNNOISED = (
    "It covers the shared model and nothing else on this page: scores, curves, maps, counts of examples and the data's "
    "fingerprint are computed from users' data without noise and are not for release."
)
NOISED = (
    "Noise is on every number that is released, also on keyed rows that nobody used, so a sum does not say who belongs "
    "where; in the clear it would. Private parameters need none: they are never released."
)
PROMISE = (
    "Private parameters are never uploaded: the message a client sends has no place for them. This means "
    "'never uploaded', not 'cannot be inferred': who sees a single client's update in the clear can "
    "reconstruct much of what that client kept. The threat model (docs/threat-model.md in homespun's "
    "sources) says what is promised, what is not, and what differential privacy or a secure sum would add."
)


@dataclass(frozen=True)
class Traffic:
    """Mean bytes of a round over rounds and seeds."""

    role: str
    down_per_client: float | None
    up_per_client: float | None
    down_per_round: float | None
    up_per_round: float | None


def pooled(configuration: Mapping[str, Any]) -> bool:
    """Whether one holder has everybody's examples, so that there are no homes and nothing travels."""
    run = configuration["runs"][0]
    return bool(run.get("pooled", run.get("method") == "central"))


def traffic_of(configuration: Mapping[str, Any]) -> list[Traffic]:
    """Bytes by role; none for a configuration without rounds."""
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
    """Bytes by role of every configuration that has homes and rounds."""
    found = {
        key: traffic_of(configuration)
        for key, configuration in results.get("configurations", {}).items()
        if not pooled(configuration)
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
            *map(count, (row.down_per_client, row.up_per_client, row.down_per_round, row.up_per_round)),
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
        "Bytes of one round, mean over rounds and seeds: for one client, and for the whole cohort. Payload "
        "only, without the framing of a network. Federated parameters are everybody's; keyed ones are rows "
        "of a table at the server; private ones belong to one person. With central noise, bytes are those of the "
        "cohort that is expected, every client with every row: how many came, and what they sent, is not told."
    )
    return table(columns, rows, caption="Bytes by role per round", note=note)


def privacy_table(results: Mapping[str, Any]) -> Table | None:
    """By role, what was released with which privacy; None where no configuration has any."""
    rows = []
    for key, configuration in results.get("configurations", {}).items():
        # every seed has the same promise; one that was killed and resumed has released more
        private = [run["privacy"] for run in configuration["runs"] if run.get("privacy")]
        found = max(private, key=lambda run: run["epsilon"], default=None)
        if found is None:
            rows.append([title_of(results, key), "as they are", "as they are", "never", MISSING, MISSING, MISSING])
            continue
        noised, of_statistics = (f"{found['noise']} noise, {norms:.3g} clip norms" for norms in _noise(found))
        statistics = "not sent" if found["statistics_clip"] is None else of_statistics
        stamp = f"{found['releases']} releases, counted with {found['rate']:.2%} of the users drawn"
        stamp += f"; public: what {' and '.join(found['public_filters'])} left" if found.get("public_filters") else ""
        stamp = INSECURE if found["insecure"] else stamp
        title, all_its_runs = title_of(results, key), _cost(configuration.get("privacy"))
        rows.append([title, noised, statistics, "never", _cost(found), stamp, all_its_runs])
    whole = results.get("privacy") or {}
    if all(row[4] == MISSING for row in rows):
        return None
    names = ["Configuration", "Federated and keyed", "Loss and examples", "Private", "Epsilon", "How"]
    if whole.get("runs", 1) > 1:
        names.append("Epsilon of all its runs")
        rows.append([f"All {whole['runs']} private runs", *[MISSING] * 5, _cost(whole)])
    made = [row[: len(names)] for row in rows]
    note = " ".join(part for part in (together_text(results), ZERO_OUT, UNNOISED, NOISED) if part)
    return table([Column(name) for name in names], made, caption="Differential privacy", note=note)


def _cost(found: Mapping[str, Any] | None) -> str:
    if not found:
        return MISSING
    return f"{found['epsilon']:.3f} at delta {found['delta']:g} (RDP {found['epsilon_rdp']:.3f})"


def together_text(results: Mapping[str, Any]) -> str:
    """What all private runs cost together, where there are several: the same people's data are in all of them."""
    found = results.get("privacy") or {}
    if found.get("runs", 1) < 2:
        return ""
    plain = found["runs_without_privacy"]
    rest = f" The {plain} runs without privacy have no bound." if plain > 1 else ""
    rest = " The run without privacy has no bound." if plain == 1 else rest
    return f"All {found['runs']} private runs together cost epsilon {_cost(found)}.{rest}"


def _noise(privacy: Mapping[str, Any]) -> tuple[float, float]:
    """On parameters and on statistics, in clip norms. Results that do not say so are of runs in which all groups had
    equal shares."""
    if "noise_norms" in privacy:
        return privacy["noise_norms"]["parameters"], privacy["noise_norms"]["statistics"]
    groups = len(privacy["clip"]) + (privacy["statistics_clip"] is not None)
    return (privacy["noise_multiplier"] * sqrt(groups),) * 2


def released_table(results: Mapping[str, Any]) -> Table:
    """What clients tell, by name, and in which configurations."""
    tellers: dict[str, list[str]] = {}
    for key, configuration in results.get("configurations", {}).items():
        names = [EVERYTHING] if pooled(configuration) else configuration["runs"][0].get("released") or []
        for name in names:
            tellers.setdefault(name, []).append(title_of(results, key))
    meanings = {**MEANINGS, EVERYTHING: _everything(results)}
    rows = [
        [shorten(name), ", ".join(titles), meanings.get(name, "what this method declares that it tells")]
        for name, titles in tellers.items()
    ]
    note = "Nothing else is sent: a statistic that a method does not declare by name is refused."
    columns = [Column("Released"), Column("By"), Column("What it is")]
    return table(columns, rows, caption="What is released", note=note)


def _everything(results: Mapping[str, Any]) -> str:
    data = results.get("data") or {}
    characters = (data.get("check") or {}).get("characters")
    size = f", {count(characters)} characters" if characters else ""
    parts = "text and label" if data.get("labels") else "its whole text"
    return f"central training: the server has every training example, {parts} (whole corpus{size})"
