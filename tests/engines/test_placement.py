"""Trainers compute on their device, and everything they return is on the CPU.

There is no GPU here. Whole rounds run on an emulated device (`emulated_device.py`) and raise if a tensor stayed on the
CPU. Torch's `FakeTensorMode` tracks devices too, but has no values: it fails where a size or a branch depends on data.
It is used only for the summed gradient of FedEmbed, forward and backward, and for a local step.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from emulated_device import TwoDevicesError, emulated_device
from test_stochastic import FILE
from torch._subclasses.fake_tensor import FakeTensorMode

from homespun.core import tree
from homespun.core.errors import SettingsError
from homespun.core.method import Adam, AdamW, Phase, Sgd, build
from homespun.core.transforms import Transforms
from homespun.data import load_federation
from homespun.engines import single_step
from homespun.engines.client import Client
from homespun.engines.cohort import CohortTrainer
from homespun.engines.local_step import LocalStep
from homespun.engines.loop import LoopTrainer
from homespun.engines.placement import move_broadcast, move_tensors
from homespun.engines.stacked import stack_data, stack_private
from homespun.methods.furl import SMALL
from homespun.models import document
from homespun.models.stacked_layers import Geometry, _windows
from homespun.privacy.dp import DpMechanism
from homespun.privacy.mechanism import Clip
from homespun.runs.open_run import open_run, task_of
from homespun.runs.settings import RunSettings
from homespun.system.method_loading import load_method, method_module
from homespun.system.trust import named_by_user

SIZES = [5, 2, 3]
ENGINES = {
    "loop": lambda made, **more: LoopTrainer(made, 0, **more),
    "cohort": lambda made, **more: CohortTrainer(made, 0, workers=0, **more),
}
# Every code path of the trainers and all hand-written operators of the models.
SUBJECTS = {
    "furl": ("furl", {"personalize_epochs": 1, "batch": 2}, "dialects"),  # several batches: not summed
    "furl, table": ("furl", {"users": "table", "pooling": "max", "mu": 0.1, "batch": 3}, "dialects"),
    "fedperc": ("fedperc", {}, "dialects"),
    "fedperc, layers": ("fedperc", {"layers": "transformer.ln_f.*", "prior": "average"}, "dialects"),
    "fedperc generated": ("fedperc_generated", {}, "dialects"),
    "split learning": ("split_learning", {}, "dialects"),
    "meta-learning": ("meta_learning", {}, "dialects"),
    "fedembed": ("fedembed", {}, "digits"),
    "fedembed, som": ("fedembed", {"assignment": "som"}, "digits"),
    "fedembed, personal": ("fedembed", {"assignment": "personal"}, "digits"),
    "pfedme": ("pfedme", {}, "digits"),
    "pfedkm": ("pfedkm", {}, "digits"),
    "dropout": (FILE, {}, "dialects"),
    "dropout, alone": (FILE, {"path": "sequential"}, "dialects"),
    "dropout, summed": (FILE, {"path": "single step"}, "dialects"),
}


LONG = pytest.mark.system
SLOW = {"fedperc, layers", "fedperc generated", "split learning", "meta-learning", "pfedme", "pfedkm"}


@named_by_user()
def make(name):
    origin, settings, corpus = SUBJECTS[name]
    federation = load_federation(corpus, settings={"users": 20 if corpus == "digits" else 6})
    small = getattr(method_module(origin), "SMALL", {})
    made = build(load_method(origin, {**small, **settings}, task_of(federation)), seed=0)
    return made, [
        Client(
            user,
            made.new_private(user, seed=0),
            made.method.model.encode(federation.examples(position).take(np.arange(size))),
        )
        for position, (user, size) in enumerate(zip(federation.users, SIZES, strict=False))
    ]


def tensors(outcome):
    update = outcome.update
    rows = [one for found in update.keyed.values() for one in (found.index, found.values, found.weight)]
    steps = [*update.statistics.values(), *(one.value for one in update.best.values())]
    kept = [value for private in outcome.private.values() for value in private.values()]
    return [*update.federated.values(), *rows, *steps, *kept]


def require_same(expected, found):
    """On the CPU, plain torch tensors, and the same numbers up to rounding: LSTMs and attention use other operators on
    the emulated device, and Adam divides small gradients by small numbers."""
    assert len(expected) == len(found)
    for one, other in zip(expected, found, strict=True):
        assert type(other) is torch.Tensor and other.device.type == "cpu"
        assert torch.allclose(one, other, rtol=1e-4, atol=5e-5)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
@pytest.mark.parametrize("name", [pytest.param(name, marks=LONG if name in SLOW else ()) for name in SUBJECTS])
def test_a_round_on_another_device(name, engine):
    """Training in a round, personalizing, and predicting."""
    made, clients = make(name)
    start = made.start().broadcast()

    def run(engine):
        trained, personalized = engine.train(start, clients), engine.train(start, clients, mode="personalize")
        assert trained.rejected == {}
        return [*tensors(trained), *tensors(personalized), *engine.predict(start, clients)]

    expected = run(engine(made))
    with emulated_device():  # after the run on the CPU: what a model cached there must not be used
        found = run(engine(made, device="meta"))
    require_same(expected, found)
    assert {one.device.type for one in made.model.parameters()} == {"cpu"}  # the caller's model was not moved


def test_clipped_gradients_on_another_device():
    made, clients = make("fedembed")
    start, clips = made.start().broadcast(), Transforms((DpMechanism(Clip({"*": 0.5})),))
    with emulated_device():
        found = CohortTrainer(made, 0, workers=0, transforms=clips, device="meta").train(start, clients)
    require_same(tensors(CohortTrainer(made, 0, workers=0, transforms=clips).train(start, clients)), tensors(found))


@pytest.mark.parametrize("optimizer", [Sgd(0.1, momentum=0.9, weight_decay=0.1), Adam(0.1), AdamW(0.1)])
def test_every_optimizer_on_another_device(optimizer):
    made, clients = make("furl")
    phase = Phase(trains={"*": optimizer}, batch=3, steps=2, clip_norm=0.1, mu=0.1)
    made = replace(made, method=replace(made.method, local=replace(made.method.local, phases=(phase,))))
    start = made.start().broadcast()
    with emulated_device():
        found = CohortTrainer(made, 0, workers=0, device="meta").train(start, clients)
    expected = CohortTrainer(made, 0, workers=0).train(start, clients)
    # Updates are weighted by examples. Steps of Adam, of size 0.1, are fused on the CPU and round differently: it
    # divides each gradient by its own size, however small.
    largest = tree.max_abs_difference(expected.update.federated, found.update.federated)
    assert largest / expected.update.weight < 2e-5


def test_workers_are_not_used_on_another_device(monkeypatch):
    monkeypatch.setattr("homespun.engines.cohort.shared_pool", None)
    made, clients = make("furl")
    with emulated_device():
        CohortTrainer(made, 0, workers=2, device="meta").train(made.start().broadcast(), clients)


# The tests above detect the errors they are for


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_a_tensor_that_stayed_on_the_cpu_is_detected_in_training(engine):
    made, clients = make("furl")
    kept = torch.ones(8)  # on the CPU

    def loss(predict, parameters, batch):
        return made.method.local.loss(lambda *given: predict(*given) * kept, parameters, batch)

    wrong = replace(made, method=replace(made.method, local=replace(made.method.local, loss=loss)))
    engine(wrong).train(made.start().broadcast(), clients)  # no error on the CPU
    with emulated_device(), pytest.raises(TwoDevicesError, match=r"aten.mul.Tensor: .*\(8,\)\] on the CPU"):
        engine(wrong, device="meta").train(made.start().broadcast(), clients)


def test_an_index_without_a_device_is_detected(monkeypatch):
    """As in `torch.arange(clients)`, which is on the CPU."""
    made, clients = make("furl, table")
    arange = torch.arange

    class Torch:
        arange = staticmethod(lambda *args, device=None: arange(*args))

        def __getattr__(self, name):
            return getattr(torch, name)

    monkeypatch.setattr(document, "torch", Torch())
    with emulated_device(), pytest.raises(TwoDevicesError, match=r"aten.index.Tensor"):
        CohortTrainer(made, 0, workers=0, device="meta").train(made.start().broadcast(), clients)


# FakeTensorMode


def fake_gradients(made, clients, *, per_client):
    """The gradient of a cohort at the broadcast weights, in a mode with shapes and devices, but without values."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        # the model's own parameters are not used: all parameters are passed to it
        placed = replace(made, initial=move_tensors(made.initial, "meta"), device="meta")
        data, private = stack_data(clients), stack_private(made, clients)
        metrics = {"loss": torch.zeros(len(clients)), "examples": torch.zeros(len(clients))}
        cohort = single_step.StackedCohort(clients, move_tensors(data, "meta"), move_tensors(private, "meta"), metrics)
        broadcast = move_broadcast(made.start().broadcast(), "meta")
        return single_step._gradients(
            placed, broadcast, cohort, weights=torch.ones(len(clients)), seed=0, per_client=per_client
        )[0]


@pytest.mark.parametrize("per_client", [False, True])
@pytest.mark.parametrize("name", ["fedembed", "fedembed, som", "fedembed, personal", "dropout, summed"])
def test_the_summed_gradient_of_fake_tensors(name, per_client):
    made, clients = make(name)
    gradients = fake_gradients(made, clients, per_client=per_client)
    for parameter, gradient in gradients.items():
        shape = made.initial[parameter].shape
        of_each = per_client or parameter.startswith(("user.embedding", "head."))
        assert gradient.shape == ((len(clients), *shape) if of_each else shape) and gradient.device.type == "cpu"
    assert len(gradients) > 4


def test_fake_tensors_of_two_devices_are_detected():
    made, clients = make("fedembed")
    last = made.method.local.phases[-1]
    kept = torch.ones(5)

    def loss(predict, parameters, batch):
        return made.method.local.loss(predict, parameters, batch) * kept

    wrong = replace(
        made, method=replace(made.method, local=replace(made.method.local, phases=(replace(last, loss=loss),)))
    )
    with pytest.raises(RuntimeError, match=r"(?i)device"):
        fake_gradients(wrong, clients, per_client=False)


@pytest.mark.parametrize("optimizer", [Sgd(0.1, momentum=0.9, weight_decay=0.1), Adam(0.1), AdamW(0.1)])
@pytest.mark.parametrize("stacked", [False, True])
def test_a_step_of_fake_tensors(optimizer, stacked):
    phase = Phase(trains={"*": optimizer}, batch=1, steps=1, mu=0.1, clip_norm=1.0)
    with FakeTensorMode():
        anchor = {"w": torch.zeros(3, 4, device="meta")}
        steps = LocalStep(phase, {"w": optimizer}, frozenset(["w"]), anchor, stacked=stacked)
        values = {"w": torch.ones(3, 4, device="meta")}
        for _ in range(2):
            steps.take(values, {"w": torch.ones(3, 4, device="meta")}, active=3 if stacked else None)
    assert values["w"].device.type == "meta"


# The windows of a convolution are extracted by numpy on the CPU and by torch on other devices


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_windows_are_the_same_on_another_device(dtype):
    inputs = torch.arange(2 * 3 * 6 * 7).view(2, 3, 6, 7, 1).to(dtype)
    geometry = Geometry(stride=(2, 1), padding=(1, 0), pool=(1, 2))
    expected, places = _windows(inputs, torch.Size((3, 2)), geometry)
    with emulated_device():
        found, same_places = _windows(inputs.to("meta"), torch.Size((3, 2)), geometry)
        found = found.to("cpu")
    assert torch.equal(expected, found) and places == same_places and found.dtype == torch.float32


# The setting


def test_an_unavailable_device_is_rejected_before_anything_is_written(tmp_path, monkeypatch):
    federation = load_federation("dialects", settings={"users": 4, "examples": 10})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for wrong in ("gpu", "meta", "cuda:2", ""):
        settings = RunSettings(rounds=1, device=wrong)
        with pytest.raises(SettingsError, match=r"torch has no .* It has: cpu, cuda, cuda:0, cuda:1\."):
            open_run(tmp_path / "run", method="furl", federation=federation, settings=settings, method_settings=SMALL)
    assert not (tmp_path / "run").exists()


def test_the_device_is_part_of_the_identity_of_a_run_unless_it_is_the_cpu():
    plain = RunSettings(rounds=1).identity()
    assert "device" not in plain and RunSettings(rounds=1, device="cpu").identity() == plain
    assert RunSettings(rounds=1, device="cuda").identity() == {**plain, "device": "cuda"}
    assert RunSettings(rounds=1, device="cuda:1").identity() == {**plain, "device": "cuda"}
