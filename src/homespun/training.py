"""Train and evaluate from Python, and what the commands call."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from homespun.core import seeds
from homespun.core.errors import DataError, MethodError, RunError, SettingsError, nearest, raise_faults
from homespun.core.messages import Broadcast
from homespun.core.method import Batch, Method, build, load_method, method_module
from homespun.core.roles import Role
from homespun.core.settings import parse
from homespun.core.tree import Tree
from homespun.data import Columns, load_federation
from homespun.data.federation import Federation
from homespun.data.splits import sample_users
from homespun.engines.engine import Client, Engine
from homespun.engines.loop import LoopEngine
from homespun.evaluation import classification, language
from homespun.evaluation.classification import Evaluation
from homespun.evaluation.language import TextEvaluation
from homespun.files import SCHEMA, DataSettings, read_json, versions, write_json
from homespun.opening import open_run
from homespun.privacy.accounting import epsilon
from homespun.run import Part, RoundRecord, Run, RunSettings, spaced

SETTINGS_FILE = "settings.json"
SHOTS: tuple[int | None, ...] = (0, 1, 5, 20, None)
TEXT_SHOTS: tuple[int | None, ...] = (0, 1, 5, 15, None)
LENGTH = {"rounds", "epochs"}  # one of them says how long a run is: whoever gives one replaces the other
BLOCK = 500  # users encoded and predicted at a time


def load(source: str | Path, *, columns: Columns = Columns(), **settings: Any) -> Federation:
    """A corpus by built-in name or file: `load("dialects", users=200)`."""
    return load_federation(source, columns=columns, settings=settings)


@dataclass(frozen=True)
class Evaluated:
    """A point of the learning curve."""

    round: int
    epoch: float
    evaluation: Evaluation | TextEvaluation

    def to_dict(self) -> dict[str, Any]:
        each = ("user_values", "user_loss", "user_tokens")  # too much to keep for every point
        curve = {name: value for name, value in self.evaluation.to_dict().items() if name not in each}
        return {"kind": "evaluation", "round": self.round, "epoch": self.epoch, **curve}


def usual_settings(method: str) -> dict[str, Any]:
    """How the method's paper runs it, as far as its file says."""
    return dict(getattr(method_module(method), "RUN", {}))


def separate_settings(method: str, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of the run, on top of those the method's paper has, and settings of the method; a name that neither
    knows is an error."""
    known = method_module(method).Settings.model_fields
    both = sorted(set(known) & set(RunSettings.model_fields))
    if both:
        raise MethodError(f"{method}: {', '.join(both)} would be a setting of both the method and the run. Rename it.")
    unknown = [name for name in values if name not in RunSettings.model_fields and name not in known]
    if unknown:
        names = sorted({*RunSettings.model_fields, *known})
        faults = [f"unknown setting {name!r}.{nearest(name, names)} Known: {', '.join(names)}." for name in unknown]
        raise_faults(SettingsError, f"training {method}", faults)
    given = LENGTH & set(values)
    usual = {name: value for name, value in usual_settings(method).items() if not given or name not in LENGTH}
    run = {**usual, **{name: value for name, value in values.items() if name in RunSettings.model_fields}}
    return run, {name: value for name, value in values.items() if name in known}


def train(method: str, federation: Federation, *, folder: str | Path | None = None, **settings: Any) -> Run:
    """Train to the end and return the run. Without a folder, its files last as long as this process."""
    run = prepare(method, federation, folder=folder, settings=settings)
    for _ in training(run):
        pass
    return run


def prepare(
    method: str,
    federation: Federation,
    *,
    folder: str | Path | None,
    settings: Mapping[str, Any],
    data: DataSettings | None = None,
) -> Run:
    run_settings, method_settings = separate_settings(method, settings)
    keep = None
    if folder is None:
        keep = tempfile.TemporaryDirectory(prefix="homespun-")
        folder = keep.name
    run = open_run(
        folder,
        method=method,
        federation=federation,
        settings=parse(RunSettings, run_settings, where="run"),
        method_settings=method_settings,
    )
    run.temporary = keep  # removed with the run
    run.data = data
    return run


def resolved_settings(run: Run, data: DataSettings) -> dict[str, Any]:
    """Everything the run was started with: enough to open it again, or to do it again elsewhere."""
    return {
        "schema": SCHEMA,
        "method": run.method.origin,
        "method_version": run.method.version,
        "method_settings": run.method.settings.model_dump(mode="json"),
        "run": run.settings.model_dump(mode="json"),
        "data": data.model_dump(mode="json"),
        "data_fingerprint": run.vault.identity["data_fingerprint"],
        "versions": versions(),
    }


def reopen(folder: str | Path, *, read_only: bool = True) -> Run:
    """The run in a folder, as far as it got."""
    found = read_json(Path(folder) / SETTINGS_FILE, missing=f"{folder}: no run here ({SETTINGS_FILE} is missing).")
    absent = sorted({"method", "method_settings", "run", "data"} - found.keys())
    if absent:
        raise RunError(f"{folder}: {SETTINGS_FILE} has no {', '.join(absent)}. Restore it from a copy.")
    data = parse(DataSettings, found["data"], where=f"{folder}: data")
    run = open_run(
        folder,
        method=found["method"],
        federation=data.load(),
        settings=parse(RunSettings, found["run"], where=f"{folder}: run"),
        method_settings=found["method_settings"],
        read_only=read_only,
    )
    run.data = data
    return run


def training(run: Run) -> Iterator[RoundRecord | Evaluated]:
    """The rounds that are left, with an evaluation wherever one is due and not yet recorded."""
    if run.data is not None and run.state.round < run.total_rounds:
        write_json(run.vault.path.parent / SETTINGS_FILE, resolved_settings(run, run.data))
    every = run.settings.evaluate_every or max(1, run.total_rounds // 20)
    recorded = {entry["round"] for entry in run.history() if entry["kind"] == "evaluation"}

    def due(round: int) -> bool:
        return round not in recorded and (round % every == 0 or round == run.total_rounds)

    def evaluated() -> Evaluated:
        point = Evaluated(run.state.round, run.state.round / run.rounds_per_epoch, evaluate(run, "eval"))
        run.record(point.to_dict())
        return point

    if due(run.state.round):  # before the first round, or killed between a round and its evaluation
        yield evaluated()
    for record in run.rounds():
        yield record
        if due(record.round):
            yield evaluated()


def evaluate(run: Run, part: Part = "test") -> Evaluation | TextEvaluation:
    """How the run's model fares with its participants, each with their own parameters."""
    if run.method.generate is not None and part == "train":
        raise SettingsError(
            f"{run.method.name}: parameters are generated from the training part, so they are not tested on it."
        )
    positions = sample_users(run.federation, at_most=run.settings.evaluate_users, seed=run.settings.seed)

    def clients(block: Sequence[int]) -> list[Client]:
        names = [run.federation.users[position] for position in block]
        private: Mapping[str, Tree] = run.private(names)
        if run.method.generate is not None:  # an embedding read off their own training text
            homes = zip(names, block, strict=True)
            private = personalize_many(
                run, [Client(name, private[name], run.encode(run.federation, place, "train")) for name, place in homes]
            )
        return [
            Client(name, private=private[name], data=run.encode(run.federation, position, part))
            for name, position in zip(names, block, strict=True)
        ]

    return judge(run, (clients(block) for block in blocks(positions)))


def shot_counts(method: Method) -> tuple[int | None, ...]:
    """How many examples of one's own are tried: those of the method's paper."""
    return TEXT_SHOTS if method.predicts == "text" else SHOTS


def evaluate_adapted(run: Run, counts: Sequence[int | None] | None = None) -> dict[str, Evaluation | TextEvaluation]:
    """Participants who adapt at home to so many new examples of their own; the scored ones are always the same."""
    if not adapts(run.method):
        return {}
    positions = sample_users(run.federation, at_most=run.settings.evaluate_users, seed=run.settings.seed)
    private = run.private([run.federation.users[position] for position in positions])
    counts = counts or shot_counts(run.method)
    return _adapted(run, run.federation, positions, counts=counts, learns_from="adapt", private=private)


def adapted_from(run: Run, test: Evaluation | TextEvaluation) -> dict[str, Evaluation | TextEvaluation]:
    """The same, where it is known how participants fare as trained: that is adapting to no example.

    Not so where a person's parameters are read off a text: without one they are somebody else's.
    """
    if not run.method.personalize or run.method.generate is not None:
        return evaluate_adapted(run)
    return {"0": test, **evaluate_adapted(run, [count for count in shot_counts(run.method) if count != 0])}


def evaluate_newcomers(run: Run, counts: Sequence[int | None] | None = None) -> dict[str, Evaluation | TextEvaluation]:
    """Users who never took part, personalized at home from so many of their own examples.

    The test examples are the same for every count. A method without private parameters has nothing to
    personalize: its model is the same for all counts. One whose users are rows of the server's table
    has no row for a newcomer, and gives nothing.
    """
    if "author" in run.method.keys.values() or not len(run.newcomers.users):
        return {}
    positions = sample_users(run.newcomers, at_most=run.settings.evaluate_users, seed=run.settings.seed)
    counts = (counts or shot_counts(run.method)) if adapts(run.method) else (0,)
    new = {run.newcomers.users[position]: run.new_private(run.newcomers.users[position]) for position in positions}
    return _adapted(run, run.newcomers, positions, counts=counts, learns_from="train", private=new)


def _adapted(
    run: Run,
    people: Federation,
    positions: Sequence[int],
    *,
    counts: Sequence[int | None],
    learns_from: Part,
    private: Mapping[str, Tree],
) -> dict[str, Evaluation | TextEvaluation]:
    def clients(block: Sequence[int], count: int | None) -> list[Client]:
        homes = [
            Client(
                people.users[position],
                private=private[people.users[position]],
                data=shots(
                    run.encode(people, position, learns_from),
                    count,
                    draw=seeds.numpy_generator(run.settings.seed, "samples", people.users[position]),
                ),
            )
            for position in block
        ]
        learned = personalize_many(run, homes)
        return [
            Client(home.user, private=learned[home.user], data=run.encode(people, position, tested_part(run)))
            for home, position in zip(homes, block, strict=True)
        ]

    return {
        "all" if count is None else str(count): judge(run, (clients(block, count) for block in blocks(positions)))
        for count in counts
    }


def adapts(method: Method) -> bool:
    """Whether a home can make more of its own data after training."""
    return bool(method.personalize) or method.generate is not None


def tested_part(run: Run) -> Part:
    """Labels are tested on the whole test part; of texts, half is left to adapt to."""
    return "scored" if run.method.predicts == "text" else "test"


def judge(
    run: Run, clients: Iterable[Sequence[Client]], *, broadcast: Broadcast | None = None, engine: Engine | None = None
) -> Evaluation | TextEvaluation:
    """Predict for everybody, block by block, and sum up."""
    broadcast, engine = broadcast or run.state.broadcast(), engine or run.engine
    truths: list[np.ndarray] = []
    outputs: list[np.ndarray] = []
    groups: list[int] = []
    truth = "length" if run.method.predicts == "text" else "label"
    for block in clients:
        able = [client for client in block if client.examples]
        truths += [client.data[truth].numpy() for client in able]
        outputs += [output.numpy() for output in engine.predict(broadcast, able)]
        groups += [int(client.data["group"][0]) for client in able if "group" in client.data]
    if run.method.predicts == "text":
        return language.summarize(outputs, truths)
    classes = run.method.task.classes
    return classification.summarize(
        truths,
        [output[:, :classes] for output in outputs],  # what else the model says is its own business
        classes=classes,
        groups=groups or None,
        metric=run.method.metric,
    )


def blocks(positions: Sequence[int]) -> Iterator[Sequence[int]]:
    return (positions[start : start + BLOCK] for start in range(0, len(positions), BLOCK))


def shots(data: Batch, count: int | None, *, draw: np.random.Generator) -> Batch:
    """So many examples, drawn; None: all of them. A person's fewer are among their more, in the order of the corpus.

    The first ones would be an opening, a date, a greeting, and often of one setting only.
    """
    if count is None:
        return data
    chosen = np.sort(draw.permutation(len(next(iter(data.values()))))[:count])
    return {name: column[torch.from_numpy(chosen)] for name, column in data.items()}


def evaluate_controls(run: Run, part: Part | None = None) -> Mapping[str, Evaluation | TextEvaluation]:
    """What can be had without the method, on the same examples as `evaluate`.

    For labels, their frequencies alone; for text, the pre-trained model untouched, which is what every method
    starts from.
    """
    part = part or tested_part(run)
    positions = sample_users(run.federation, at_most=run.settings.evaluate_users, seed=run.settings.seed)
    if run.method.predicts == "text":
        return {"untouched": untouched(run, run.federation, positions, part)}
    splits = [run.split(run.federation, position) for position in positions]
    tested = [spaced(getattr(split, part), run.settings.evaluate_examples) for split in splits]
    return classification.controls(splits, tested, classes=run.method.task.classes, metric=run.method.metric)


def untouched(
    run: Run, people: Federation, positions: Sequence[int], part: Part = "scored"
) -> Evaluation | TextEvaluation:
    """The pre-trained model: the state before the first round, with everybody new, and one BOS before every text."""
    built, engine = run.built, run.engine
    if getattr(run.method.settings, "virtual_tokens", 1) > 1:  # several BOS would be nothing that it was trained with
        settings = {**run.method.settings.model_dump(mode="json"), "virtual_tokens": 1}
        built = build(load_method(run.method.origin, settings, run.method.task), seed=run.settings.seed)
        engine = LoopEngine(built, run.settings.seed)
    start = built.start().broadcast()

    def clients(block: Sequence[int]) -> list[Client]:
        return [
            Client(
                people.users[position],
                private=built.new_private(people.users[position], seed=run.settings.seed),
                data=run.encode(people, position, part),
            )
            for position in block
        ]

    return judge(run, (clients(block) for block in blocks(positions)), broadcast=start, engine=engine)


def personalize_many(run: Run, homes: Sequence[Client]) -> dict[str, Tree]:
    """What each home knows after learning from its examples, on its own; nothing is sent."""
    able = [home for home in homes if home.examples or run.method.generate is not None]
    if not adapts(run.method) or not able:
        return {home.user: home.private for home in homes}
    learned = run.engine.work(run.state.broadcast(), able, work="personalize").private
    return {home.user: learned.get(home.user, home.private) for home in homes}


def label_indices(labels: Sequence[str], known: Sequence[str]) -> np.ndarray:
    places = {label: position for position, label in enumerate(known)}
    unknown = sorted({label for label in labels if label not in places})
    if unknown:
        raise_faults(
            DataError,
            "labels",
            [f"the run knows no label {label!r}.{nearest(label, known)}" for label in unknown],
        )
    return np.array([places[label] for label in labels], dtype=np.int64)


def newcomers_untouched(run: Run) -> dict[str, Any] | None:
    """What newcomers would have from the pre-trained model alone."""
    if run.method.predicts != "text" or not len(run.newcomers.users):
        return None
    positions = sample_users(run.newcomers, at_most=run.settings.evaluate_users, seed=run.settings.seed)
    return untouched(run, run.newcomers, positions).to_dict()


def user_vectors(run: Run, positions: Sequence[int], only: Sequence[str] | None = None) -> np.ndarray | None:
    """Each user's own parameters as one row, all of them or some: from the vault, or from the server's table.

    None where there are none, or where they are made anew from a text every time and never kept.
    """
    if run.method.generate is not None:
        return None
    if run.built.partition.names(Role.PRIVATE):
        names = [run.federation.users[position] for position in positions]
        private = run.private(names)
        return np.stack(
            [
                np.concatenate([own[key].numpy().ravel() for key in sorted(own) if only is None or key in only])
                for own in (private[name] for name in names)
            ]
        )
    tables = [name for name, column in run.method.keys.items() if column == "author"]
    return run.state.keyed[tables[0]][list(positions)].numpy() if tables else None


def privacy_of(run: Run) -> dict[str, Any] | None:
    """What differential privacy the run had, and what its rounds cost; None: it had none."""
    if run.plan is None:
        return None
    settings, delta = run.plan.settings, run.plan.settings.delta
    ((release, rounds),) = run.spending.items()
    return {
        "noise": settings.noise,
        "clip": run.plan.clip.norms,
        "statistics_clip": run.plan.clip.statistics,
        "noise_multiplier": run.plan.noise_multiplier,
        "rate": release.rate,
        "releases": rounds,
        "delta": delta,
        "epsilon": epsilon(run.spending, delta=delta),
        "epsilon_rdp": epsilon(run.spending, delta=delta, way="rdp"),
        "insecure": settings.insecure,
    }


def results(run: Run) -> dict[str, Any]:
    """All that `results.json` says of a finished run."""
    history = run.history()
    test = evaluate(run, tested_part(run))
    adapted = adapted_from(run, test) if run.method.predicts == "text" else {}
    return {
        "method": run.method.name,
        "pooled": run.method.pooled,
        "parameters": {role.value: run.built.count(role) for role in Role},
        "settings": run.method.settings.model_dump(mode="json"),
        "run": run.settings.model_dump(mode="json"),
        "task": asdict(run.method.task),
        "rounds": [entry for entry in history if entry["kind"] == "round"],
        "curve": [entry for entry in history if entry["kind"] == "evaluation"],
        "eval": evaluate(run, "eval").to_dict(),
        "test": test.to_dict(),
        "adapted": {count: found.to_dict() for count, found in adapted.items()},
        "newcomers": {count: found.to_dict() for count, found in evaluate_newcomers(run).items()},
        "newcomers_untouched": newcomers_untouched(run),
        "privacy": privacy_of(run),
        "released": ["parameter updates", "weight", *run.method.statistics, *run.method.releases],
    }
