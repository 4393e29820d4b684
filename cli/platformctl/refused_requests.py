"""Reason of the last refused `microservice infer`, stored for `status` and `doctor`.

Servers do not record refusals. The next successful request clears it.
"""

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from pilotlight.targets.local.home import home

LONGEST: Final = 500
_NAME: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,62}")  # job ids come from a shared registry: no path separators


def record(job_id: str, reason: str) -> None:
    """Store the reason, which must not contain secrets. Write errors are ignored."""
    path = _path(job_id)
    if path is None:
        return
    with suppress(OSError):
        home(os.environ).create()
        path.parent.mkdir(mode=0o700, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with open(os.open(path, flags, 0o600), "w") as file:
            file.write(reason[:LONGEST])


def last_refusal(job_id: str) -> str:
    """Return the stored reason; empty if the last request succeeded."""
    path = _path(job_id)
    with suppress(OSError):
        return path.read_text(errors="replace") if path is not None else ""
    return ""


def clear(job_id: str) -> None:
    path = _path(job_id)
    if path is not None:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _path(job_id: str) -> Path | None:
    return home(os.environ).root / "microservices" / f"{job_id}.refused" if _NAME.fullmatch(job_id) else None
