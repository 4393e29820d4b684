"""Lines of a replica's log as a person reads them: the predictor writes JSON, one object a line."""

import json
from typing import Any, Final

SHOWN: Final = frozenset({"ts", "level", "event", "message", "logger", "traceback"})


def readable(line: str) -> str:
    """`12:00:00.123 INFO model.loaded iris (version=1)`; what is not JSON stays as it is."""
    if not line.startswith("{"):
        return line
    try:
        found: dict[str, Any] = json.loads(line)
    except ValueError:
        return line
    if "ts" not in found or "event" not in found:
        return line
    clock = str(found["ts"]).partition("T")[2].rstrip("Z")
    fields = ", ".join(f"{name}={_plain(value)}" for name, value in found.items() if name not in SHOWN)
    words = [clock, str(found.get("level", "")), str(found["event"]), str(found.get("message", ""))]
    told = " ".join(filter(None, words)) + (f" ({fields})" if fields else "")
    return told + (f"\n{str(found['traceback']).rstrip()}" if found.get("traceback") else "")


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
