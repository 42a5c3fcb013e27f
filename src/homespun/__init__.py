"""homespun: personalized federated learning, language first.

What makes each person different is learned, kept and used at home and never travels.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from homespun.api import evaluate, generate, load, personalize, reopen, train

__all__ = ["evaluate", "generate", "load", "personalize", "reopen", "train"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # torch takes seconds to import: `homespun --help` and a starting worker should not wait for it
    if name in __all__:
        from importlib import import_module

        return getattr(import_module("homespun.api"), name)
    raise AttributeError(f"module 'homespun' has no attribute {name!r}")
