"""For programs that are the first process of a container: SIGTERM is heard from the first moment on.

The kernel drops a signal that process 1 of a container has no handler for. A pod that is told to end while it starts,
which scaling to zero does, would run on until it is killed at the end of its grace, minutes later. Images of ours have
SIGTERM blocked when Python starts (Containerfile), so that one which comes before `heed_sigterm` waits for it.
"""

import os
import signal


def heed_sigterm() -> None:
    """The process ends at once, as one that a shell started would. Whoever drains puts its own handler there later."""
    signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
