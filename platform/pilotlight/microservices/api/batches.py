"""Routes of batch jobs over a folder of a workspace: start, status, cancel, resume."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final
from uuid import uuid4

from aiohttp import web
from msgspec import Struct

from pilotlight.api.json_bodies import json_response, read_body
from pilotlight.api.route_types import Handler
from pilotlight.errors import NotFound, UsageError
from pilotlight.k8s.timestamps import utc_now
from pilotlight.microservices.api.api_context import CONTEXT, ApiContext, job_path
from pilotlight.microservices.api.request_bodies import Location, Name
from pilotlight.microservices.batch import jobs
from pilotlight.microservices.batch.job_folder import Batch, Counts, Progress, State
from pilotlight.microservices.jobs import org_resources
from pilotlight.microservices.jobs.model_isolation import check_model
from pilotlight.microservices.jobs.start_request import model_of, platform_options
from pilotlight.microservices.media import read_declaration
from pilotlight.microservices.registry.records import JobRecord, Status
from pilotlight.targets.local.home_directory import Home

Operation = Callable[[Home, str, Mapping[str, str]], Progress]
STATUSES: Final[Mapping[State, Status]] = {
    "pending": "pending", "loading": "running", "running": "running", "done": "done", "failed": "error",
    "canceled": "canceled",
}  # fmt: skip


class StartBatch(Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a start. `inputs` and `outputs` are folders of the workspace, `labels` a file of it for scoring."""

    parent_id: Name
    inputs: Location
    outputs: Location
    parameters: Mapping[str, Any] = {}
    labels: Location = ""
    num_gpus: int = 1


class BatchReport(Counts, frozen=True):
    job_id: str
    status: State
    progress_percent: float


async def start(request: web.Request) -> web.Response:
    context, body = request.app[CONTEXT], await read_body(request, StartBatch)
    org, experiment = request.match_info["org"], request.match_info["experiment"]
    parent = org_resources.get_parent(context.store, org, experiment, body.parent_id)
    now, where = utc_now(), context.settings.platform
    record = JobRecord(str(uuid4()), org, experiment, "batch", "pending", now, now, parent=parent.id, platform=where)
    batch = await _batch(context, record, parent, body)
    progress = await asyncio.to_thread(jobs.start, context.home, batch, context.environ)
    context.store.add_job(record, context.max_records)
    return json_response(_report(progress))


async def _batch(context: ApiContext, record: JobRecord, parent: JobRecord, body: StartBatch) -> Batch:
    experiment = context.store.experiment(record.org, record.experiment)
    if not experiment.workspace:
        raise UsageError(f"experiment {experiment.id} has no workspace for inputs and results")
    stored = context.store.workspace(record.org, experiment.workspace)
    workspace, owner = stored.storage, "" if stored.by_operator else record.org
    if owner:
        org_resources.check_folder(owner, workspace, context.limits)
    model, isolation = model_of(context.settings, parent, stored)
    await asyncio.to_thread(check_model, record.org, model, isolation)
    read = partial(read_declaration, model, workspace, context.limits, context.environ)
    declared = await context.operations.submit(read)
    return Batch(
        record.id, experiment.network_arch, model, workspace, body.inputs, body.outputs, body.parameters,
        body.labels, record.platform, platform_options(context.settings, record.org), body.num_gpus, declared, owner,
        isolation, experiment.kind,
    )  # fmt: skip


def _handler(operation: Operation) -> Handler:
    """Return the handler that calls the operation, updates the record and returns the progress."""

    async def handler(request: web.Request) -> web.Response:
        context = request.app[CONTEXT]
        record = org_resources.get_job(context.store, *job_path(request))
        if record.kind != "batch":
            raise NotFound(f"job {record.id} is of kind {record.kind}, not one-time inference")
        progress = await asyncio.to_thread(operation, context.home, record.id, context.environ)
        if STATUSES[progress.state] != record.status:
            changes = {"status": STATUSES[progress.state], "message": progress.message}
            context.store.update_job(record.org, record.id, utc_now(), **changes)
        return json_response(_report(progress))

    return handler


status, cancel, resume = _handler(jobs.status), _handler(jobs.cancel), _handler(jobs.resume)


def _report(progress: Progress) -> BatchReport:
    counts = {name: getattr(progress, name) for name in Counts.__struct_fields__}
    return BatchReport(progress.job_id, progress.state, round(progress.percent, 1), **counts)
