"""A small FURL and twelve users of very different sizes."""

from homespun.core.method import Task, build
from homespun.data.dialects import Dialects
from homespun.data.dialects import Settings as DialectSettings
from homespun.engines.client import Client
from homespun.methods.furl import SMALL
from homespun.system.method_loading import load_method

FEDERATION = Dialects(DialectSettings(users=12, examples=10, ragged=0.9))


def built(method="furl", *, seed=0, **settings):
    return build(load_method(method, {**SMALL, **settings}, Task(classes=8, population=12)), seed=seed)


def clients(made, positions=range(12)):
    return [
        Client(
            FEDERATION.users[position],
            private=made.new_private(FEDERATION.users[position], seed=0),
            data=made.method.model.encode(FEDERATION.examples(position)),
        )
        for position in positions
    ]
