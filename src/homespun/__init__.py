"""homespun: personalized federated learning, language first.

What makes each person different is learned, kept and used at home and never travels.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from homespun.generation import generate
    from homespun.judging import evaluate
    from homespun.newcomer import personalize
    from homespun.training import load, reopen, train

__all__ = ["evaluate", "generate", "load", "personalize", "reopen", "train"]
_ELSEWHERE = {
    "evaluate": "judging",
    "generate": "generation",
    "personalize": "newcomer",
}  # the others are in `training`
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # torch takes seconds to import: `homespun --help` and a starting worker should not wait for it
    if name in __all__:
        from importlib import import_module

        return getattr(import_module(f"homespun.{_ELSEWHERE.get(name, 'training')}"), name)
    raise AttributeError(f"module 'homespun' has no attribute {name!r}")
