"""Exception tree of the predictor; each class has an HTTP status, a Triton-style code and a gRPC status.

    PredictorError                 500 INTERNAL
    ├── BadRequest                 400 INVALID_ARG     malformed or invalid for the model
    │   └── ShapeMismatch                              its shape or datatype, whatever the values are
    ├── Unreadable                 400 INVALID_ARG     bytes that are not a gRPC message
    ├── Unauthenticated            401 UNAUTHENTICATED no or wrong credentials
    ├── Forbidden                  403 PERMISSION      known, but not allowed
    │   └── Restricted                                 without the key of its API group
    ├── NotFound                   404 NOT_FOUND       unknown model or version
    │   └── NoRoute                                    unknown path
    ├── MethodNotAllowed           405 INVALID_ARG
    ├── RequestTimeout             408 INVALID_ARG     the request came too slowly
    ├── RequestTooLarge            413 INVALID_ARG     beyond a size limit
    ├── RateLimited                429 UNAVAILABLE     too many requests of one client
    ├── Unsupported                501 UNSUPPORTED     a content encoding or feature that is not served here
    ├── Unavailable                503 UNAVAILABLE     with Retry-After
    │   ├── NotReady                                   the model is loading, failed or unloading
    │   ├── QueueFull                                  beyond the bound of a queue or of bytes in flight
    │   └── QueueTimeout                               waited longer than its queue policy allows
    ├── DeadlineExceeded           504 DEADLINE        the inference timeout passed
    ├── Cancelled                  499 CANCELLED       the client disconnected
    ├── BackendFailed              500 INTERNAL        the model raised: opaque to the client, logged in full
    └── LoadFailed                 400 INVALID_ARG     a model cannot be loaded; the reason is for the operator
        └── ModelChanged                               the store has other bytes than the revision was deployed with

An error becomes a response in one place, `error_response`.
"""

from typing import ClassVar


class PredictorError(Exception):
    """Root of the tree; its message is one sentence for the client that names the field and the fix."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "INTERNAL"
    grpc_status: ClassVar[str] = "INTERNAL"
    retry_after: int | None = None
    request_id: str = ""  # of the log entry with the cause, if one is already written


class BadRequest(PredictorError):
    status, code, grpc_status = 400, "INVALID_ARG", "INVALID_ARGUMENT"


class ShapeMismatch(BadRequest):
    """An input that the model rejects for its shape or datatype, whatever its values are."""


class Unreadable(PredictorError):
    status, code = 400, "INVALID_ARG"  # over gRPC INTERNAL, as its specification demands


class Unauthenticated(PredictorError):
    status, code, grpc_status = 401, "UNAUTHENTICATED", "UNAUTHENTICATED"


class Forbidden(PredictorError):
    status, code, grpc_status = 403, "PERMISSION", "PERMISSION_DENIED"


class Restricted(Forbidden):
    grpc_status = "UNAVAILABLE"  # as Triton, whose clients send the key


class NotFound(PredictorError):
    status, code, grpc_status = 404, "NOT_FOUND", "NOT_FOUND"


class NoRoute(NotFound):
    """A path that no protocol has."""


class MethodNotAllowed(PredictorError):
    status, code, grpc_status = 405, "INVALID_ARG", "UNIMPLEMENTED"

    def __init__(self, message: str, allow: str) -> None:
        super().__init__(message)
        self.allow = allow  # value of the Allow header


class RequestTimeout(PredictorError):
    status, code, grpc_status = 408, "INVALID_ARG", "CANCELLED"


class RequestTooLarge(PredictorError):
    status, code, grpc_status = 413, "INVALID_ARG", "RESOURCE_EXHAUSTED"


class RateLimited(PredictorError):
    status, code, grpc_status = 429, "UNAVAILABLE", "RESOURCE_EXHAUSTED"

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unsupported(PredictorError):
    status, code, grpc_status = 501, "UNSUPPORTED", "UNIMPLEMENTED"


class Unavailable(PredictorError):
    status, code, grpc_status = 503, "UNAVAILABLE", "UNAVAILABLE"
    retry_after = 1


class NotReady(Unavailable):
    pass


class QueueFull(Unavailable):
    pass


class QueueTimeout(Unavailable):
    pass


class DeadlineExceeded(PredictorError):
    status, code, grpc_status = 504, "DEADLINE", "DEADLINE_EXCEEDED"


class Cancelled(PredictorError):
    status, code, grpc_status = 499, "CANCELLED", "CANCELLED"


class BackendFailed(PredictorError):
    def __init__(self, message: str, request_id: str = "") -> None:
        super().__init__(message)
        self.request_id = request_id


class LoadFailed(PredictorError):
    status, code, grpc_status = 400, "INVALID_ARG", "INVALID_ARGUMENT"


class ModelChanged(LoadFailed):
    """The store holds other content than the one that the revision was deployed with."""
