"""Exceptions of the clients. All are PlatformErrors, and also what Python calls the same thing.

InvalidInput           UsageError, ValueError  refused before anything was sent: names, datatypes, shapes, arguments
ConnectionFailed       ConnectionError         no connection, or it ended without a response
ResponseError                                  the server's error, with its `status` and message
DeadlineExceeded       TimedOut, TimeoutError  no whole response by the deadline of the call; `waited_s` is how long
└── ColdStartTimeout                           the same, while the service was starting
"""

from pilotlight.errors import PlatformError, TimedOut, UsageError


class InvalidInput(UsageError, ValueError):
    pass


class ConnectionFailed(PlatformError, ConnectionError):
    pass


class ResponseError(PlatformError):
    """`status` is the HTTP status, 0 for an error within a stream; `reason` the server's own message."""

    def __init__(self, message: str, status: int, reason: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


class DeadlineExceeded(TimedOut, TimeoutError):
    def __init__(self, message: str, waited_s: float) -> None:
        super().__init__(message)
        self.waited_s = waited_s


class ColdStartTimeout(DeadlineExceeded):
    pass
