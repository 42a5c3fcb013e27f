"""Where a worker process begins: `python -m homespun.engines.process FD PARENT`.

It asks the kernel to die with its parent before it imports anything that takes seconds, so that not even
a parent killed at once leaves an orphan.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Linux kills this process when its parent dies; elsewhere the closed socket ends it after its chunk."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before we could ask
        sys.exit(0)


def main() -> None:
    descriptor, parent = (int(argument) for argument in sys.argv[1:])
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle

    from homespun.engines.worker import serve

    serve(descriptor)


if __name__ == "__main__":
    main()
