"""Why a microservice refused the last request of `infer`, kept for `status` and `doctor` until one succeeds.

A server forgets what it refused, and a person who asks what is wrong has often closed that terminal.
"""

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from pilotlight.targets.local.home import home

LONGEST: Final = 500
_NAME: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,62}")  # of a registry that others write too


def note(job_id: str, why: str) -> None:
    """`why` has no secret in it. Where nothing can be written, nothing is kept."""
    path = _path(job_id)
    if path is None:
        return
    with suppress(OSError):
        home(os.environ).create()
        path.parent.mkdir(mode=0o700, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with open(os.open(path, flags, 0o600), "w") as file:
            file.write(why[:LONGEST])


def noted(job_id: str) -> str:
    """Empty where its last request was answered."""
    path = _path(job_id)
    with suppress(OSError):
        return path.read_text(errors="replace") if path is not None else ""
    return ""


def forget(job_id: str) -> None:
    path = _path(job_id)
    if path is not None:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _path(job_id: str) -> Path | None:
    return home(os.environ).root / "microservices" / f"{job_id}.refused" if _NAME.fullmatch(job_id) else None
