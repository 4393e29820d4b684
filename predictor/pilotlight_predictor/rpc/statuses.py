"""Our errors as gRPC statuses: one table, in which a test finds every class of errors.py."""

from typing import Final

from pilotlight.contract import HEADER_REQUEST_ID
from pilotlight_predictor import errors
from pilotlight_predictor.calls import Call, Reply
from pilotlight_predictor.dispatch import error_reply
from pilotlight_predictor.errors import PredictorError

CODES: Final[dict[type[PredictorError], str]] = {
    errors.PredictorError: "INTERNAL",
    errors.BadRequest: "INVALID_ARGUMENT",
    errors.Unreadable: "INTERNAL",  # as the protocol wants it
    errors.Unauthenticated: "UNAUTHENTICATED",
    errors.Forbidden: "PERMISSION_DENIED",
    errors.NotFound: "NOT_FOUND",
    errors.MethodNotAllowed: "UNIMPLEMENTED",
    errors.RequestTooLarge: "RESOURCE_EXHAUSTED",
    errors.RateLimited: "RESOURCE_EXHAUSTED",
    errors.Unsupported: "UNIMPLEMENTED",
    errors.Unavailable: "UNAVAILABLE",
    errors.NotReady: "UNAVAILABLE",
    errors.QueueFull: "UNAVAILABLE",
    errors.QueueTimeout: "UNAVAILABLE",
    errors.DeadlineExceeded: "DEADLINE_EXCEEDED",
    errors.Cancelled: "CANCELLED",
    errors.BackendFailed: "INTERNAL",
    errors.LoadFailed: "INVALID_ARGUMENT",
}
_TOLD: Final = (HEADER_REQUEST_ID, "Retry-After")


class RpcRefusal(Reply):
    """What a client is told instead of an answer."""

    __slots__ = ("code", "message")

    def __init__(self, error: PredictorError) -> None:
        super().__init__(error.status)
        self.code = code_of(type(error))
        self.message = str(error).encode("utf-8", "replace").decode()

    @property
    def trailers(self) -> tuple[tuple[str, str], ...]:
        told = self.headers or {}
        return tuple((name.lower(), told[name]) for name in _TOLD if name in told)


def code_of(kind: type[PredictorError]) -> str:
    """A class that a plug-in derived has the code of what it derives from."""
    return next(CODES[each] for each in kind.__mro__ if each in CODES)


def refusal(error: Exception, call: Call) -> RpcRefusal:
    """As over HTTP: our own errors in words, anything else opaque and in the log.

    This is where an error ends. What it passed through knows it in turn and holds the message: a large one would stay
    until the collector comes.
    """
    reply = error_reply(RpcRefusal, error, call)
    assert isinstance(reply, RpcRefusal)
    error.__traceback__ = error.__context__ = None
    return reply
