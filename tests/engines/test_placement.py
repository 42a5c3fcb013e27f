"""Engines compute where they are told, and everything that leaves them is on the CPU.

There is no GPU here. Whole rounds run on a device that is emulated (`elsewhere.py`), and raise where a tensor stayed on
the CPU. Torch's own `FakeTensorMode` knows devices, too, but no numbers: a size or a branch that depends on data ends
it. So it goes only as far as the summed gradient of FedEmbed, forward and backward, and a local step.
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
from homespun.engines import single_step as summed
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
# Every way through the engines and, of the models, everything that is written by hand.
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
    """On the CPU, as torch's own tensors, and of the same numbers but for rounding: LSTMs and attention are made of
    other operators elsewhere, and Adam divides small gradients by small numbers."""
    assert len(expected) == len(found)
    for one, other in zip(expected, found, strict=True):
        assert type(other) is torch.Tensor and other.device.type == "cpu"
        assert torch.allclose(one, other, rtol=1e-4, atol=5e-5)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
@pytest.mark.parametrize("name", [pytest.param(name, marks=LONG if name in SLOW else ()) for name in SUBJECTS])
def test_a_round_elsewhere(name, engine):
    """Training with the cohort, training at home, and predicting."""
    made, clients = make(name)
    start = made.start().broadcast()

    def worked(engine):
        trained, at_home = engine.train(start, clients), engine.train(start, clients, mode="personalize")
        assert trained.rejected == {}
        return [*tensors(trained), *tensors(at_home), *engine.predict(start, clients)]

    expected = worked(engine(made))
    with emulated_device():  # afterwards: what a model remembers of its work on the CPU must not be used
        found = worked(engine(made, device="meta"))
    require_same(expected, found)
    assert {one.device.type for one in made.model.parameters()} == {"cpu"}  # the caller's model stays where it is


def test_clipped_gradients_elsewhere():
    made, clients = make("fedembed")
    start, clips = made.start().broadcast(), Transforms((DpMechanism(Clip({"*": 0.5})),))
    with emulated_device():
        found = CohortTrainer(made, 0, workers=0, transforms=clips, device="meta").train(start, clients)
    require_same(tensors(CohortTrainer(made, 0, workers=0, transforms=clips).train(start, clients)), tensors(found))


@pytest.mark.parametrize("optimizer", [Sgd(0.1, momentum=0.9, weight_decay=0.1), Adam(0.1), AdamW(0.1)])
def test_every_optimizer_elsewhere(optimizer):
    made, clients = make("furl")
    phase = Phase(trains={"*": optimizer}, batch=3, steps=2, clip_norm=0.1, mu=0.1)
    made = replace(made, method=replace(made.method, local=replace(made.method.local, phases=(phase,))))
    start = made.start().broadcast()
    with emulated_device():
        found = CohortTrainer(made, 0, workers=0, device="meta").train(start, clients)
    expected = CohortTrainer(made, 0, workers=0).train(start, clients)
    assert tree.max_abs_difference(expected.update.federated, found.update.federated) < 1e-4


def test_workers_are_not_asked_where_the_device_is_another_one(monkeypatch):
    monkeypatch.setattr("homespun.engines.cohort.shared_pool", None)
    made, clients = make("furl")
    with emulated_device():
        CohortTrainer(made, 0, workers=2, device="meta").train(made.start().broadcast(), clients)


# The tests above notice what they are for


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_a_tensor_that_stayed_on_the_cpu_is_noticed_in_training(engine):
    made, clients = make("furl")
    kept = torch.ones(8)  # on the CPU

    def loss(predict, parameters, batch):
        return made.method.local.loss(lambda *given: predict(*given) * kept, parameters, batch)

    wrong = replace(made, method=replace(made.method, local=replace(made.method.local, loss=loss)))
    engine(wrong).train(made.start().broadcast(), clients)  # here nothing is wrong
    with emulated_device(), pytest.raises(TwoDevicesError, match=r"aten.mul.Tensor: .*\(8,\)\] on the CPU"):
        engine(wrong, device="meta").train(made.start().broadcast(), clients)


def test_an_index_without_a_device_is_noticed(monkeypatch):
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


def fake_gradients(made, clients, *, apart):
    """The gradient of a cohort at the weights it was sent, in a mode that knows shapes and devices, but no numbers."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        # the network's own parameters are not used: all that it computes with is given to it
        there = replace(made, initial=move_tensors(made.initial, "meta"), device="meta")
        data, private = stack_data(clients), stack_private(made, clients)
        told = {"loss": torch.zeros(len(clients)), "examples": torch.zeros(len(clients))}
        cohort = summed.StackedCohort(clients, move_tensors(data, "meta"), move_tensors(private, "meta"), told)
        broadcast = move_broadcast(made.start().broadcast(), "meta")
        return summed._gradients(there, broadcast, cohort, weights=torch.ones(len(clients)), seed=0, apart=apart)[0]


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("name", ["fedembed", "fedembed, som", "fedembed, personal", "dropout, summed"])
def test_the_summed_gradient_of_fake_tensors(name, apart):
    made, clients = make(name)
    gradients = fake_gradients(made, clients, apart=apart)
    for parameter, gradient in gradients.items():
        shape = made.initial[parameter].shape
        of_each = apart or parameter.startswith(("user.embedding", "head."))
        assert gradient.shape == ((len(clients), *shape) if of_each else shape) and gradient.device.type == "cpu"
    assert len(gradients) > 4


def test_fake_tensors_of_two_devices_are_noticed():
    made, clients = make("fedembed")
    last = made.method.local.phases[-1]
    kept = torch.ones(5)

    def loss(predict, parameters, batch):
        return made.method.local.loss(predict, parameters, batch) * kept

    wrong = replace(
        made, method=replace(made.method, local=replace(made.method.local, phases=(replace(last, loss=loss),)))
    )
    with pytest.raises(RuntimeError, match=r"(?i)device"):
        fake_gradients(wrong, clients, apart=False)


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


# The windows of a convolution are cut by numpy on the CPU and by torch elsewhere


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_windows_are_the_same_elsewhere(dtype):
    inputs = torch.arange(2 * 3 * 6 * 7).view(2, 3, 6, 7, 1).to(dtype)
    geometry = Geometry(stride=(2, 1), padding=(1, 0), pool=(1, 2))
    expected, places = _windows(inputs, torch.Size((3, 2)), geometry)
    with emulated_device():
        found, same_places = _windows(inputs.to("meta"), torch.Size((3, 2)), geometry)
        found = found.to("cpu")
    assert torch.equal(expected, found) and places == same_places and found.dtype == torch.float32


# The setting


def test_a_device_that_torch_does_not_have_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    federation = load_federation("dialects", settings={"users": 4, "examples": 10})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for wrong in ("gpu", "meta", "cuda:2", ""):
        settings = RunSettings(rounds=1, device=wrong)
        with pytest.raises(SettingsError, match=r"torch has no .* It has: cpu, cuda, cuda:0, cuda:1\."):
            open_run(tmp_path / "run", method="furl", federation=federation, settings=settings, method_settings=SMALL)
    assert not (tmp_path / "run").exists()


def test_the_device_is_part_of_what_a_run_is_unless_it_is_the_cpu():
    plain = RunSettings(rounds=1).identity()
    assert "device" not in plain and RunSettings(rounds=1, device="cpu").identity() == plain
    assert RunSettings(rounds=1, device="cuda").identity() == {**plain, "device": "cuda"}
    assert RunSettings(rounds=1, device="cuda:1").identity() == {**plain, "device": "cuda"}
