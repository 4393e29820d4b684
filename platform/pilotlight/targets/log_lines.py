"""The end of a replica's log, read for what went wrong: any target asks it when a replica does not answer. Pure."""

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

LONGEST: Final = 300
ERRORS: Final = ("ERROR", "CRITICAL")


def last_error(log: Sequence[str]) -> str:
    """The message of the last error in our schema, else the last line that is not in it (a traceback ends so)."""
    plain = ""
    for line in reversed(log):
        document = _document(line)
        if document is None:
            plain = plain or line.strip()
        elif document.get("level") in ERRORS:
            return str(document.get("message", ""))[:LONGEST]
    return plain[:LONGEST]


def failed_event(log: Sequence[str]) -> str:
    """The message of the last line by which our predictor says that it will not become ready; empty: none."""
    for line in reversed(log):
        document = _document(line) or {}
        if document.get("level") in ERRORS and document.get("event") in ("failed", "model.failed"):
            return str(document.get("message", "")).partition("; /status tells it too")[0][:LONGEST]
    return ""


def _document(line: str) -> dict[str, object] | None:
    if line.startswith("{"):
        with suppress(ValueError):
            found = json.loads(line)
            return found if isinstance(found, dict) else None
    return None
