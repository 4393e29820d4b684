"""How a medium is refused: one sentence for who asked, and the precise reason for the log.

A client must not learn what is on the network behind this service, so whatever an address, a name or a connection had
to do with it has one and the same text.
"""

import logging
from typing import Final

from pilotlight.errors import UsageError

LOG: Final = logging.getLogger("pilotlight.media")
UNREACHED: Final = "could not be fetched; check the address, or ask the operator, whose log has the reason"


class MediaRefused(UsageError):
    """`at` is the place in the list of media, or -1 where all of them together are too much."""

    def __init__(self, sentence: str, at: int = -1) -> None:
        super().__init__(f"media[{at}] {sentence}" if at >= 0 else sentence)
        self.at = at


class Refusal(Exception):
    """Raised by what fetches one medium: `told` is for the client, `why` for the log."""

    def __init__(self, told: str, why: str = "") -> None:
        super().__init__(told)
        self.told = told
        self.why = why or told


def unreached(why: str) -> Refusal:
    return Refusal(UNREACHED, why)
