"""homespun: personalized federated learning, language first.

Many users train one model together. What makes each of them different is learned, kept and used on their own client,
and is never uploaded.

    import homespun

    federation = homespun.load("dialects", users=200)
    run = homespun.train("furl", federation, rounds=20)
    print(homespun.evaluate(run))
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from homespun.api import *  # noqa: F403

_FOR_USERS = ("evaluate", "generate", "load", "personalize", "reopen", "reply", "suggest", "train")
_FOR_AUTHORS = (
    "Adam", "AdamW", "Artefact", "Assign", "Best", "Broadcast", "FedAdam", "FedAvg", "Generated", "GradientSteps",
    "Home", "LabelScoring", "LocalTraining", "LocalView", "Method", "ModelSpec", "Paper", "Personalization", "Phase",
    "ReplyScoring", "Role", "Scoring", "ServerState", "Settings", "Sgd", "Stack", "Sum", "Task", "TokenScoring",
    "Update", "UpdateTransform", "Window", "check_method",
)  # fmt: skip

__all__ = [*_FOR_USERS, *_FOR_AUTHORS]
__version__ = "0.2.0"


def __getattr__(name: str) -> Any:
    # torch takes seconds to import: `homespun --help` and a starting worker should not wait for it
    if name in __all__:
        from importlib import import_module

        return getattr(import_module("homespun.api"), name)
    raise AttributeError(f"module 'homespun' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
