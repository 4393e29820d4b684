"""Batch jobs for the API and the command line: start, status, cancel, resume.

A job runs in a process of its own, which outlives the one that started it. Where it was killed, `status` stops its
model, and `resume` continues with the files that have no result yet.
"""

import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from pilotlight.errors import Conflict, PlatformError
from pilotlight.k8s.timestamps import utc_now
from pilotlight.microservices.batch import runner
from pilotlight.microservices.batch.job_folder import FINAL, Batch, JobFolder, Progress, job_folder
from pilotlight.microservices.jobs.target_service import TargetService
from pilotlight.targets.local.detached_process import start_detached
from pilotlight.targets.local.home_directory import Home

KILLED: Final = "the job's process exited before it was done; resume it to process the remaining files"


def start(home: Home, batch: Batch, environ: Mapping[str, str]) -> Progress:
    """Start a job without waiting. Raise for what can be rejected before its model runs."""
    runner.check(batch)
    home.create()
    folder = job_folder(home, batch.id)
    folder.create(batch)
    return _run(folder, environ)


def status(home: Home, job_id: str, environ: Mapping[str, str]) -> Progress:
    """Return the progress. If the job's process was killed, its model is stopped."""
    folder = job_folder(home, job_id)
    folder.batch()
    progress = folder.progress()
    identity = folder.runner()
    if progress.state in FINAL or identity is None or identity.alive:
        return progress
    progress = folder.progress()  # it may have ended between the two reads
    if progress.state in FINAL:
        return progress
    state, message = ("canceled", "") if folder.cancelled else ("failed", KILLED)
    error = _clean_up(folder, environ)
    return folder.save_progress(replace(progress, state=state, message="; ".join(filter(None, (message, error)))))


def list_jobs(home: Home, environ: Mapping[str, str]) -> list[Progress]:
    return [status(home, path.parent.name, environ) for path in sorted((home.root / "batch").glob("*/job.json"))]


def cancel(home: Home, job_id: str, environ: Mapping[str, str]) -> Progress:
    """Request cancellation without waiting; the process stops its model first. No effect on an ended job."""
    if status(home, job_id, environ).state not in FINAL:
        folder = job_folder(home, job_id)
        folder.cancel()
        entry, process = folder.entry(), folder.runner()
        if entry is not None and not entry.host_url and process is not None and process.alive:
            os.kill(process.pid, signal.SIGTERM)  # it blocks in the platform, which may pull an image for an hour
    return status(home, job_id, environ)


def resume(home: Home, job_id: str, environ: Mapping[str, str]) -> Progress:
    """Continue with the files that have no result, after a crash, a failure or a cancellation."""
    folder = job_folder(home, job_id)
    folder.batch()
    with folder.exclusive("resume.lock"):  # a second `resume` finds the process that the first has started
        progress = status(home, job_id, environ)
        if progress.state == "done":
            return progress
        if progress.state not in FINAL:
            raise Conflict(f"batch job {job_id} is already running")
        if error := _clean_up(folder, environ):
            raise PlatformError(error, "stop it on its platform, then resume the job")
        folder.cancel(False)
        return _run(folder, environ)


def wait(home: Home, job_id: str, environ: Mapping[str, str], seconds: float) -> Progress:
    """Wait until it has ended, at most `seconds`."""
    end = time.monotonic() + seconds
    while (progress := status(home, job_id, environ)).state not in FINAL and time.monotonic() < end:
        time.sleep(0.1)
    return progress


def _run(folder: JobFolder, environ: Mapping[str, str]) -> Progress:
    folder.save_runner(None)  # or `status` would find the previous process and report this one as killed
    progress = folder.save_progress(replace(folder.progress(), state="pending", message="", started_at=utc_now()))
    command = [sys.executable, "-m", "pilotlight.microservices.batch.runner", str(folder.folder)]
    try:
        pid = start_detached(command, folder.log, env=environ)
    except OSError as error:
        message = f"its process cannot be started: {error}"
        folder.save_progress(replace(progress, state="failed", message=message))
        raise PlatformError(f"batch job {folder.folder.name}: {message}", "resume it once that is fixed") from None
    folder.save_runner(pid)
    return progress


def _clean_up(folder: JobFolder, environ: Mapping[str, str]) -> str:
    """Stop the model of a killed process; return the error, or empty."""
    entry = folder.entry()
    if entry is None:
        return ""
    try:
        TargetService(entry.platform, environ).stop(folder.folder.name, entry)
    except PlatformError as error:
        return f"its model could not be stopped: {error}"
    folder.save_entry(None)
    return ""
