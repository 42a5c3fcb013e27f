"""Entry point of a worker process: `python -m homespun.engines.process FD PARENT`.

Before any slow import, it asks the kernel to kill it when its parent dies, so that a parent that is killed right after
the start leaves no orphan.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Linux kills this process when its parent dies; on other systems it ends when its socket is closed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before the request
        sys.exit(0)


def main() -> None:
    descriptor, parent = (int(argument) for argument in sys.argv[1:])
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C

    from homespun.engines.worker import serve

    serve(descriptor)


if __name__ == "__main__":
    main()
