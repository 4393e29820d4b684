"""Errors of media: a message for the client, and the precise reason for the log.

A client must not learn about the network behind this service, so all failures of addresses, names and connections have
the same message.
"""

import logging
from typing import Final

from pilotlight.errors import UsageError

LOG: Final = logging.getLogger("pilotlight.media")
UNREACHABLE: Final = "could not be fetched; check the address, or ask the operator, whose log has the reason"


class MediaRefused(UsageError):
    """A rejected medium; `at` is its index in the request, or -1 for all together."""

    def __init__(self, sentence: str, at: int = -1) -> None:
        super().__init__(f"media[{at}] {sentence}" if at >= 0 else sentence)
        self.at = at


class MediaError(Exception):
    """Failure of one medium: `message` is for the client, `reason` for the log."""

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or message


def unreachable(reason: str) -> MediaError:
    return MediaError(UNREACHABLE, reason)
