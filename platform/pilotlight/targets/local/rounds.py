"""Work that goes on as long as the control process does: a round that fails is told, and the next one comes."""

import logging
from types import TracebackType

log = logging.getLogger("pilotlight.rounds")


class Survived:
    """Around one round. A task that ended by it would end unseen, and all that it does for every service with it."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False  # nothing failed, or the task shall end
        log.error("%s failed; this is a defect of ours, and it is tried again", self._what, exc_info=error)
        return True
