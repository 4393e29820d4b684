"""One-time jobs by REST: start one over a folder of the workspace, see how far it is, cancel it, go on. Thin."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final
from uuid import uuid4

from aiohttp import web
from msgspec import Struct, json

from pilotlight.errors import NotFound, UsageError
from pilotlight.microservices import kinds, registering, workspaces
from pilotlight.microservices.api.desk import DESK, Desk
from pilotlight.microservices.api.written import reply
from pilotlight.microservices.batch import jobs
from pilotlight.microservices.batch.model import Batch, Progress, State
from pilotlight.microservices.platforms import platform
from pilotlight.microservices.records import JobRecord, Status
from pilotlight.microservices.wishes import known_options, options_of
from pilotlight.targets.local.chronicle import utc
from pilotlight.targets.local.home import Home

STATUSES: Final[Mapping[State, Status]] = {
    "pending": "pending", "loading": "running", "running": "running", "done": "done", "failed": "error",
    "canceled": "canceled",
}  # fmt: skip


class StartBatch(Struct, frozen=True, forbid_unknown_fields=True):
    """`inputs` and `outputs` are folders of the experiment's workspace, `labels` a file of it to score by."""

    parent_id: str
    inputs: str
    outputs: str
    parameters: Mapping[str, Any] = {}
    labels: str = ""
    num_gpus: int = 1


class BatchReport(Struct, frozen=True):
    job_id: str
    status: State
    progress_percent: float
    total: int
    done: int
    failed: int
    skipped: int
    message: str
    started_at: str
    updated_at: str
    metrics: Mapping[str, Any] | None


async def start(request: web.Request) -> web.Response:
    desk, asked = request.app[DESK], json.decode(await request.read(), type=StartBatch)
    org, experiment = request.match_info["org"], request.match_info["experiment"]
    parent = registering.parent_of(desk.directory, org, experiment, asked.parent_id)
    now, place = utc(), desk.place.platform
    record = JobRecord(str(uuid4()), org, experiment, "batch", "pending", now, now, parent=parent.id, platform=place)
    batch = await _batch(desk, record, parent, asked)
    progress = await asyncio.to_thread(jobs.start, desk.home, batch, desk.environ)
    desk.directory.add_job(record)
    return reply(_report(progress))


async def _batch(desk: Desk, record: JobRecord, parent: JobRecord, asked: StartBatch) -> Batch:
    experiment = desk.directory.experiment(record.org, record.experiment)
    if not experiment.workspace:
        raise UsageError(f"experiment {experiment.id} has no workspace, where inputs are read and results are written")
    workspace = desk.directory.workspace(record.org, experiment.workspace).storage
    model = workspaces.locate(workspace, parent.artifact, trusted=True)  # judged when the job was added
    path = workspaces.local(model)
    declared = await asyncio.to_thread(kinds.beside, path) if path else ""
    return Batch(
        record.id, experiment.network_arch, model, workspace, asked.inputs, asked.outputs, asked.parameters,
        asked.labels, record.platform, _options(desk, record), asked.num_gpus, declared,
    )  # fmt: skip


def _options(desk: Desk, record: JobRecord) -> Mapping[str, str]:
    return known_options(platform(record.platform, desk.environ), options_of(desk.place, record.org))


async def status(request: web.Request) -> web.Response:
    return await _done(request, jobs.look)


async def cancel(request: web.Request) -> web.Response:
    return await _done(request, jobs.cancel)


async def resume(request: web.Request) -> web.Response:
    return await _done(request, jobs.resume)


async def _done(
    request: web.Request, what: Callable[[Home, str, Mapping[str, str]], Progress]
) -> web.Response:  # fmt: skip
    """How far it is then, which its record keeps too."""
    desk, record = request.app[DESK], _record(request)
    progress = await asyncio.to_thread(what, desk.home, record.id, desk.environ)
    if STATUSES[progress.state] != record.status:
        changes = {"status": STATUSES[progress.state], "message": progress.message}
        desk.directory.update_job(record.org, record.id, utc(), **changes)
    return reply(_report(progress))


def _report(progress: Progress) -> BatchReport:
    return BatchReport(
        progress.job_id, progress.state, round(progress.percent, 1), progress.total, progress.done, progress.failed,
        progress.skipped, progress.message, progress.started_at, progress.updated_at, progress.metrics,
    )  # fmt: skip


def _record(request: web.Request) -> JobRecord:
    place = (request.match_info["org"], request.match_info["experiment"], request.match_info["job"])
    found = registering.job_of(request.app[DESK].directory, *place)
    if found.kind != "batch":
        raise NotFound(f"job {found.id} is of the kind {found.kind}, not of one-time inference")
    return found
