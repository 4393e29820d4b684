"""Error message from the last lines of a replica's log; used by every target to explain a failure. Pure."""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

MAX_LENGTH: Final = 300
MAX_EVENT_LENGTH: Final = 1000  # our own sentences end with the fix, after a URI that may be long
ERRORS: Final = ("ERROR", "CRITICAL")
# Who ended a job, also at a plain SIGTERM; what docker says of the machine before a container starts.
_NO_REASON: Final = re.compile(r"slurmstepd\S*: error: \*\*\* JOB \d+ ON |WARNING: ")
_STACKS: Final = re.compile(r"Timeout \(\d+:\d\d:\d\d.*\)!")  # faulthandler's first line before all stacks

# Where a program's help is, after the line that says what was wrong: Run 'docker run --help' for more information.
USAGE_HINT: Final = re.compile(
    r"""\s*(usage:|(run|see|try) ['"`]?[\w ./-]+ --help['"`]?( for .*)?\.?$)""", re.IGNORECASE
)


def last_error(log: Sequence[str]) -> str:
    """Return the message of the last error in our log schema, else the last other line (the end of a traceback)."""
    plain = ""
    for index in range(len(log) - 1, -1, -1):
        line = log[index]
        document = log_record(line)
        if document is None:
            if _STACKS.match(line):
                return _gil_holder(log[index:])[:MAX_LENGTH]
            plain = plain or ("" if _NO_REASON.match(line) or USAGE_HINT.match(line) else line.strip())
        elif document.get("level") in ERRORS:
            return str(document.get("message", ""))[:MAX_LENGTH]
    return plain[:MAX_LENGTH]


def last_exception(log: Sequence[str]) -> str:
    """Return the last line of the last logged exception, such as `KeyError: 'petal'`; else the last error."""
    for line in reversed(log):
        document = log_record(line) or {}
        lines = str(document.get("traceback") or "").strip().splitlines()
        if document.get("level") in ERRORS and lines:
            return lines[-1].strip()[:MAX_LENGTH]
    return last_error(log)


def failed_event(log: Sequence[str]) -> str:
    """Return the message of the predictor's last event that it will not become ready; empty: none."""
    for line in reversed(log):
        document = log_record(line) or {}
        if document.get("level") in ERRORS and document.get("event") in ("failed", "model.failed"):
            return str(document.get("message", "")).partition("; /status reports it too")[0][:MAX_EVENT_LENGTH]
    return ""


def _gil_holder(log: Sequence[str]) -> str:
    """Describe the stacks that the watchdog of a predictor writes, by the frame of a model."""
    frames = [line.strip() for line in log if line.startswith("  File ")]
    place = next((frame for frame in frames if "/model.py" in frame), frames[0] if frames else "")
    return f"an execution has not finished in time and holds the GIL; the process exits: {place}"


def log_record(line: str) -> dict[str, object] | None:
    """Return the object of a line in JSON; None: another line."""
    if line.startswith("{"):
        with suppress(ValueError):
            document = json.loads(line)
            return document if isinstance(document, dict) else None
    return None
