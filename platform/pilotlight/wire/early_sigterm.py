"""SIGTERM handling for programs that run as process 1 of a container, from their first line on.

The kernel drops signals that process 1 has no handler for: a pod that is deleted while it starts, as on scale to zero,
would run until SIGKILL at the end of its grace period. The image's entrypoint (Containerfile) blocks SIGTERM before
Python starts, so an earlier signal stays pending until `handle_sigterm` unblocks it.
"""

import os
import signal


def handle_sigterm() -> None:
    """Let process 1 exit on SIGTERM as other processes do; servers that drain replace the handler later."""
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
