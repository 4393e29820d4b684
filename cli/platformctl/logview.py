"""Readable lines from the predictor's JSON log."""

import json
from typing import Any, Final

SHOWN: Final = frozenset({"ts", "level", "event", "message", "logger", "traceback"})


def readable(line: str) -> str:
    """`12:00:00.123 INFO model.loaded iris (version=1)`; a line that is not JSON stays as it is."""
    if not line.startswith("{"):
        return line
    try:
        record: dict[str, Any] = json.loads(line)
    except ValueError:
        return line
    if "ts" not in record or "event" not in record:
        return line
    clock = str(record["ts"]).partition("T")[2].rstrip("Z")
    fields = ", ".join(
        f"{name}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
        for name, value in record.items()
        if name not in SHOWN
    )
    words = [clock, str(record.get("level", "")), str(record["event"]), str(record.get("message", ""))]
    text = " ".join(filter(None, words)) + (f" ({fields})" if fields else "")
    return text + (f"\n{str(record['traceback']).rstrip()}" if record.get("traceback") else "")
