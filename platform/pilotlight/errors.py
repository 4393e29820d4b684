"""Every way the control plane can fail; each class knows the exit code of the command that meets it.

    PlatformError              1  failed
    ├── Conflict               1  somebody else changed it meanwhile; the same again, from what is there, may work
    ├── Unauthorized           1  who asks is not known, or may not; never says what of it was wrong
    ├── Throttled              1  asked too often
    ├── InvalidDocument        2  a document is wrong: all its problems at once, each with its place
    ├── UsageError             2  the call itself is wrong
    ├── NotFound               3  no such service, revision, file or runtime
    ├── TimedOut               4  it did not become ready in time
    ├── RolledBack             5  a canary or deploy was taken back
    └── InternalError          6  a defect of ours

Turned into a message and an exit code in one place, `platformctl.main`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from pilotlight.spec.problems import Problem


class PlatformError(Exception):
    """The root; its text is a sentence for the user, `hint` one command or step that helps."""

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


class InvalidDocument(PlatformError):
    exit_code = 2

    def __init__(self, problems: "Sequence[Problem]") -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


class NotFound(PlatformError):
    exit_code = 3


class TimedOut(PlatformError):
    exit_code = 4


class RolledBack(PlatformError):
    exit_code = 5


class InternalError(PlatformError):
    exit_code = 6
