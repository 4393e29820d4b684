"""Batch jobs as the API and the command line see them: start, look, cancel, take up again.

A job runs in a process of its own, which goes on when whoever started it ends. What it was doing when it was killed is
seen here: its model is ended, and `resume` goes on with the files that have no result yet.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Final
from uuid import uuid4

from msgspec.structs import replace

from pilotlight.errors import Conflict, PlatformError
from pilotlight.microservices.batch import runner
from pilotlight.microservices.batch.keeping import Kept, all_kept, kept
from pilotlight.microservices.batch.model import FINAL, Batch, Progress
from pilotlight.microservices.platforms import platform
from pilotlight.targets.local.chronicle import utc
from pilotlight.targets.local.home import Home

KILLED: Final = "the job's process ended before it was done; resume it to go on with what is left"


def new_id() -> str:
    return str(uuid4())


def start(home: Home, batch: Batch, environ: Mapping[str, str]) -> Progress:
    """Returns at once. What no model could make good is refused here."""
    runner.check(batch)
    home.create()
    folder = kept(home, batch.id)
    folder.keep(batch)
    return _run(folder, environ)


def look(home: Home, job_id: str, environ: Mapping[str, str]) -> Progress:
    """How far it is. Of one whose process is gone the model is ended, wherever it runs."""
    folder = kept(home, job_id)
    folder.batch()
    progress = folder.progress()
    identity = folder.runner()
    if progress.state in FINAL or identity is None or identity.alive:
        return progress
    progress = folder.progress()  # it may have ended well between the two looks
    if progress.state in FINAL:
        return progress
    state, message = ("canceled", "") if folder.cancelled else ("failed", KILLED)
    tidied = _tidied(folder, environ)
    return _noted(folder, replace(progress, state=state, message="; ".join(filter(None, (message, tidied)))))


def listed(home: Home, environ: Mapping[str, str]) -> list[Progress]:
    return [look(home, each.folder.name, environ) for each in all_kept(home)]


def cancel(home: Home, job_id: str, environ: Mapping[str, str]) -> Progress:
    """Returns at once; the process ends its model first. Of one that has ended nothing changes."""
    if look(home, job_id, environ).state not in FINAL:
        folder = kept(home, job_id)
        folder.cancel()
        entry, process = folder.entry(), folder.runner()
        if entry is not None and not entry.host_url and process is not None and process.alive:
            os.kill(process.pid, signal.SIGTERM)  # it waits for the platform, which may pull an image for an hour
    return look(home, job_id, environ)


def resume(home: Home, job_id: str, environ: Mapping[str, str]) -> Progress:
    """Goes on with the files that have no result, after a crash, a failure or a cancellation."""
    folder = kept(home, job_id)
    folder.batch()
    with folder.resuming():
        progress = look(home, job_id, environ)
        if progress.state == "done":
            return progress
        if progress.state not in FINAL:
            raise Conflict(f"batch job {job_id} is under way already")
        if left := _tidied(folder, environ):
            raise PlatformError(left, "end it on its platform, then resume the job")
        folder.allow()
        return _run(folder, environ)


def wait(home: Home, job_id: str, environ: Mapping[str, str], seconds: float) -> Progress:
    """Until it has ended, or the time is over."""
    end = time.monotonic() + seconds
    while (progress := look(home, job_id, environ)).state not in FINAL and time.monotonic() < end:
        time.sleep(0.1)
    return progress


def _run(folder: Kept, environ: Mapping[str, str]) -> Progress:
    folder.forget_runner()  # whoever looks meanwhile must not take the process before for this one, and it for killed
    progress = _noted(folder, replace(folder.progress(), state="pending", message="", started_at=utc()))
    try:
        process = _begun(folder, environ)
    except OSError as error:
        message = f"its process cannot be started: {error}"
        _noted(folder, replace(progress, state="failed", message=message))
        raise PlatformError(f"batch job {folder.folder.name}: {message}", "resume it once that is mended") from None
    folder.note_runner(process.pid)
    threading.Thread(target=process.wait, daemon=True).start()  # whoever goes on living must not keep it as a zombie
    return progress


def _begun(folder: Kept, environ: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "pilotlight.microservices.batch", str(folder.folder)]
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    with open(os.open(folder.log, flags, 0o600), "ab") as log:
        return subprocess.Popen(  # noqa: S603 - our own interpreter and a folder of ours
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=dict(environ), start_new_session=True
        )


def _noted(folder: Kept, progress: Progress) -> Progress:
    found = replace(progress, updated_at=utc())
    folder.note(found)
    return found


def _tidied(folder: Kept, environ: Mapping[str, str]) -> str:
    """Ends what a killed process left running; what could not be ended is told."""
    entry = folder.entry()
    if entry is None:
        return ""
    try:
        platform(entry.platform, environ).stop(folder.folder.name, entry)
    except PlatformError as error:
        return f"its model could not be ended: {error}"
    folder.note_entry(None)
    return ""
