"""`--workers N`: N identical predictors on one port, each a process, and a small parent that makes them one server.

`parent` binds the ports, starts the workers and replaces those that die; `seat` is what a worker inherits. A call that
concerns all of them (`spread` says which) goes from the worker that got it over `link` to the parent, which asks every
worker and merges the answers. With one worker nothing of this is imported.
"""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pilotlight_predictor.lifecycle import Lifecycle
    from pilotlight_predictor.settings import Settings


def run(settings: "Settings", lifecycle: "Lifecycle", argv: Sequence[str]) -> int:
    """The parent in a process that a person started, a worker in one that the parent started."""
    from pilotlight_predictor.workers.seat import inherited

    seat = inherited(os.environ)
    if seat is None:
        from pilotlight_predictor.workers.parent import run as supervise

        return supervise(settings, argv)
    from pilotlight_predictor.app import run as serve

    return serve(settings, lifecycle, seat)


__all__ = ["run"]
