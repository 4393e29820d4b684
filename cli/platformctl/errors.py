"""Every way a command can fail; each class knows its exit code, which `main` turns it into.

    CommandError      1   it failed
    ├── NotFound      3   what was named does not exist
    ├── TimedOut      4   it may still come, but not within --timeout
    └── RolledBack    5   the change failed and was taken back

Usage errors are click's, with code 2. Anything else is a defect of ours: 6.
"""

from typing import ClassVar

INTERNAL = 6


class CommandError(Exception):
    """The root; its text is a sentence for the user, `hint` one command or step that helps."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class NotFound(CommandError):
    exit_code = 3


class TimedOut(CommandError):
    exit_code = 4


class RolledBack(CommandError):
    exit_code = 5
