"""Work that goes on as long as the control process does: a round that fails is told, and the next one comes."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger("pilotlight.rounds")


@contextmanager
def survived(what: str) -> Iterator[None]:
    """Around one round. A task that ended by it would end unseen, and all that it does for every service with it."""
    try:
        yield
    except Exception:
        log.exception("%s failed; this is a defect of ours, and it is tried again", what)
