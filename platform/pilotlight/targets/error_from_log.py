"""Error message from the last lines of a replica's log; used by every target to explain a failure. Pure."""

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

MAX_LENGTH: Final = 300
ERRORS: Final = ("ERROR", "CRITICAL")


def last_error(log: Sequence[str]) -> str:
    """Return the message of the last error in our log schema, else the last other line (the end of a traceback)."""
    plain = ""
    for line in reversed(log):
        document = _document(line)
        if document is None:
            plain = plain or line.strip()
        elif document.get("level") in ERRORS:
            return str(document.get("message", ""))[:MAX_LENGTH]
    return plain[:MAX_LENGTH]


def failed_event(log: Sequence[str]) -> str:
    """Return the message of the predictor's last event that it will not become ready; empty: none."""
    for line in reversed(log):
        document = _document(line) or {}
        if document.get("level") in ERRORS and document.get("event") in ("failed", "model.failed"):
            return str(document.get("message", "")).partition("; /status tells it too")[0][:MAX_LENGTH]
    return ""


def _document(line: str) -> dict[str, object] | None:
    if line.startswith("{"):
        with suppress(ValueError):
            document = json.loads(line)
            return document if isinstance(document, dict) else None
    return None
