"""One part of a measurement: what it found, or why it failed, so that the others still run."""

import sys
import traceback
from collections.abc import Callable
from typing import Any


def guarded(told: dict[str, Any], name: str, part: Callable[[], Any]) -> None:
    try:
        told[name] = part()
    except Exception:
        told[name] = {"failed": traceback.format_exc()[-3000:]}
    print(f"{name} is done", file=sys.stderr, flush=True)
