"""Exceptions of the control plane; each class carries the exit code of a command that ends with it.

    PlatformError              1  the operation failed
    ├── Conflict               1  the object was changed by another writer; a retry from its current state may succeed
    ├── Unauthorized           1  unknown or insufficient credentials; never says which part was wrong
    ├── Throttled              1  too many requests
    ├── InvalidDocument        2  all problems of a document, each with its location (spec/problems.py)
    ├── UsageError             2  wrong arguments, such as a file that does not exist
    ├── NotFound               3  no such service, revision or runtime
    │   └── OnOtherTarget      3  the service exists, on another target of the same platform
    ├── TimedOut               4  not ready in time
    ├── RolledBack             5  a canary or deploy was rolled back
    └── InternalError          6  a bug of the platform

`platformctl.main` turns them into a message and an exit code, `api.middlewares` into an HTTP status.
"""

from typing import ClassVar


class PlatformError(Exception):
    """Base class; the text is a sentence for the user, `hint` one command or step that helps."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Conflict(PlatformError):
    exit_code = 1


class Unauthorized(PlatformError):
    exit_code = 1


class Throttled(PlatformError):
    exit_code = 1

    def __init__(self, message: str, hint: str = "", retry_after_s: int = 1) -> None:
        super().__init__(message, hint)
        self.retry_after_s = retry_after_s


class UsageError(PlatformError):
    exit_code = 2


class NotFound(PlatformError):
    exit_code = 3


class OnOtherTarget(NotFound):
    pass


class TimedOut(PlatformError):
    exit_code = 4


class RolledBack(PlatformError):
    exit_code = 5


class InternalError(PlatformError):
    exit_code = 6
