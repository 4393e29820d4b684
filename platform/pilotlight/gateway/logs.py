"""What the gateway's process has to say, in the schema that predictors log in: a JSON object per line on stderr."""

import sys
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from msgspec import json


def log(event: str, message: str, *, level: str = "INFO", **fields: Any) -> None:
    """Writing never raises: a full disk or a closed pipe costs lines, not requests."""
    stamp = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    line = {"ts": stamp, "level": level, "event": event, "message": message, "logger": "pilotlight.gateway", **fields}
    with suppress(OSError, ValueError):
        sys.stderr.write(json.encode(line).decode() + "\n")
        sys.stderr.flush()
