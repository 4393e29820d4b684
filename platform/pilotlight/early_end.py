"""For programs that are the first process of a container: SIGTERM is heard as soon as any code of ours runs.

The kernel drops a signal that process 1 of a container has no handler for. A pod that is told to end while it starts,
which scaling to zero does, would run on until it is killed at the end of its grace, minutes later. The entrypoint of
the image (Containerfile) has SIGTERM blocked when Python starts, so that one which comes even earlier waits for this.
"""

import os
import signal


def heed_sigterm() -> None:
    """The first process ends as any other does without a handler. Whoever drains puts its own there later."""
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
