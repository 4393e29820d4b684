"""Log of the gateway in the schema of the predictors: JSON lines on stderr."""

import sys
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from msgspec import json


def log(event: str, message: str, *, level: str = "INFO", **fields: Any) -> None:
    """Write a log line. Never raises: a full disk or a closed pipe must not fail requests."""
    stamp = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    line = {"ts": stamp, "level": level, "event": event, "message": message, "logger": "pilotlight.gateway", **fields}
    with suppress(OSError, ValueError):
        sys.stderr.write(json.encode(line).decode() + "\n")
        sys.stderr.flush()
