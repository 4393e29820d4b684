"""gRPC status codes of the predictor's errors."""

from typing import Final

from pilotlight.contract import HEADER_REQUEST_ID
from pilotlight_predictor import errors
from pilotlight_predictor.calls import HttpRequest, HttpResponse
from pilotlight_predictor.dispatch import error_response
from pilotlight_predictor.errors import PredictorError

CODES: Final[dict[type[PredictorError], str]] = {
    errors.PredictorError: "INTERNAL",
    errors.BadRequest: "INVALID_ARGUMENT",
    errors.Unreadable: "INTERNAL",  # as the gRPC specification demands
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
_TRAILER_HEADERS: Final = (HEADER_REQUEST_ID, "Retry-After")


class GrpcErrorResponse(HttpResponse):
    """Status, message and trailers of a failed call."""

    __slots__ = ("code", "message")

    def __init__(self, error: PredictorError) -> None:
        super().__init__(error.status)
        self.code = code_of(type(error))
        self.message = str(error).encode("utf-8", "replace").decode()

    @property
    def trailers(self) -> tuple[tuple[str, str], ...]:
        headers = self.headers or {}
        return tuple((name.lower(), headers[name]) for name in _TRAILER_HEADERS if name in headers)


def code_of(kind: type[PredictorError]) -> str:
    """Return the code of an error class; subclasses of plug-ins have that of their base."""
    return next(CODES[each] for each in kind.__mro__ if each in CODES)


def grpc_error(error: Exception, request: HttpRequest) -> GrpcErrorResponse:
    """Return the error for the client, as over HTTP: unexpected exceptions are logged and reported as opaque."""
    response = error_response(GrpcErrorResponse, error, request)
    assert isinstance(response, GrpcErrorResponse)
    # The traceback holds the request's memory in a reference cycle, until the garbage collector runs.
    error.__traceback__ = error.__context__ = None
    return response
