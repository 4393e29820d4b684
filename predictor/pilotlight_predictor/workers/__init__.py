"""`--workers N`: N identical predictor processes on one port, and a supervisor that makes them one server.

The supervisor binds the ports, starts the workers and replaces those that exit. A request that concerns all workers is
forwarded to the supervisor, which sends it to each of them and merges the responses. Not imported with one worker.
"""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pilotlight_predictor.lifecycle import Lifecycle
    from pilotlight_predictor.settings import Settings


def run(settings: "Settings", lifecycle: "Lifecycle", argv: Sequence[str]) -> int:
    """Run the supervisor, or a worker in a process that the supervisor started; return the exit code."""
    from pilotlight_predictor.workers.seat import from_environment

    seat = from_environment(os.environ)
    if seat is None:
        from pilotlight_predictor.workers.parent import run as supervise

        return supervise(settings, argv)
    from pilotlight_predictor.app import run as serve

    return serve(settings, lifecycle, seat)


__all__ = ["run"]
