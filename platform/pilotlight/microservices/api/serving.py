"""Routes of microservices: start, inference, status and stop, with bodies and codes of TAO's API, over lifecycle.py."""

import asyncio
from typing import Any, Final
from uuid import uuid4

from aiohttp import web
from msgspec import json

from pilotlight.errors import NotFound, PlatformError, Throttled, UsageError
from pilotlight.microservices import kinds, parameters, predicting, registering, replies, starting, workspaces
from pilotlight.microservices.api import bodies, talking
from pilotlight.microservices.api.desk import CONTEXT, INFERENCE_TIMEOUT_S, ApiContext
from pilotlight.microservices.api.looking import observe, to_advice
from pilotlight.microservices.api.written import json_response, to_response
from pilotlight.microservices.calling import InferenceFailed
from pilotlight.microservices.diagnosis import Evidence
from pilotlight.microservices.kinds import Schema
from pilotlight.microservices.model import Workspace
from pilotlight.microservices.parameters import ModelRequest
from pilotlight.microservices.records import NOT_STOPPED, JobRecord
from pilotlight.microservices.replies import ApiResponse
from pilotlight.microservices.ways import not_running
from pilotlight.microservices.wishes import start_request_for
from pilotlight.targets.local.chronicle import utc

REJECTIONS: Final = frozenset({400, 413, 415, 422})  # the model rejects the request


async def start(request: web.Request) -> web.Response:
    """Record the job and start it in the background."""
    context, body = request.app[CONTEXT], json.decode(await request.read(), type=bodies.Start)
    org, experiment = request.match_info["org"], request.match_info["experiment"]
    if body.num_gpus is not None and body.num_gpus < 1:
        raise UsageError(f"num_gpus = {body.num_gpus}, must be at least 1")
    parent = registering.get_parent(context.directory, org, experiment, body.parent_id)
    registering.check_quota(context.directory, org, context.environ)
    now, platform_name = utc(), context.settings.platform
    record = JobRecord(
        str(uuid4()),
        org,
        experiment,
        "inference_microservice",
        "pending",
        now,
        now,
        parent.artifact,
        parent.id,
        platform_name,
    )
    start_request, secret = start_request_for(context.directory, context.settings, record, body.num_gpus or 0)
    starting.build_job(
        start_request, {**context.environ, **secret}, record.id
    )  # reject now what no platform could start
    context.directory.add_job(record)
    context.lifecycle.start(record, start_request, secret)
    return json_response(replies.Started(record.id))


async def status(request: web.Request) -> web.Response:
    """Return the status, also of a microservice that is being stopped. Raise NotFound after its end."""
    record = _record(request)
    return json_response((await observe(request.app[CONTEXT], record)).report(record.id))


async def stop(request: web.Request) -> web.Response:
    """Stop a microservice. After an error it stays `stopping`, and stop can be repeated."""
    context, record = request.app[CONTEXT], _record(request)
    context.forget(record.id)
    try:
        await context.lifecycle.stop(record)
    except NotFound:
        raise
    except PlatformError as error:
        return to_response(replies.failed(record.id, f"It could not be stopped: {error}"))
    return json_response(replies.Stopped(record.id))


async def inference(request: web.Request) -> web.Response:
    context, record = request.app[CONTEXT], _record(request)
    if record.status == "stopping":
        raise not_running(record.id)
    body = json.decode(await request.read(), type=dict[str, Any])
    schema = await _schema(context, record)
    try:
        return to_response(await _infer(context, record, schema, parameters.validate(schema, body)))
    except UsageError as error:  # parameters and media that the client can correct
        return to_response(_rejected(context, record, error))


async def _infer(context: ApiContext, record: JobRecord, schema: Schema, model_request: ModelRequest) -> ApiResponse:
    """Forward the request to a ready model, or return why it is not ready."""
    if record.id not in context.ready:
        observation = await observe(context, record)
        if observation.health.phase != "ready":
            return observation.response(record.id)
        context.ready.add(record.id)
    return await _forward(context, record, schema, model_request)


async def _forward(context: ApiContext, record: JobRecord, schema: Schema, model_request: ModelRequest) -> ApiResponse:
    """Fetch media and call the model in a thread. After a failure the status is checked for its cause."""
    workspace = _workspace(context, record)

    def call(url: str) -> Any:
        media = (
            talking.load_media(schema, model_request.media, workspace, context.limits, context.environ)
            if model_request.media
            else ()
        )
        return predicting.predict(url, schema, model_request, media, context.limits, INFERENCE_TIMEOUT_S)

    try:
        results = await context.lifecycle.run_inference(record, call)
    except InferenceFailed as error:
        if error.status in REJECTIONS:
            return _rejected(context, record, error)
        context.ready.discard(record.id)
        observation = await observe(context, record)
        return observation.response(record.id) if observation.health.phase != "ready" else _failed(record, error)
    except (PlatformError, KeyError, IndexError, TypeError, ValueError) as error:
        if isinstance(error, UsageError | Throttled):
            raise
        return _failed(record, error)
    context.rejections.pop(record.id, None)
    return replies.completed(record.id, results)


def _rejected(context: ApiContext, record: JobRecord, error: PlatformError) -> ApiResponse:
    """Return 400 and store the reason for the status until a request succeeds."""
    context.rejections[record.id] = str(error)
    return replies.rejected(record.id, str(error), to_advice(Evidence(job_id=record.id, rejected=str(error))))


def _failed(record: JobRecord, error: Exception) -> ApiResponse:
    """Return 503, also where the model's response cannot be parsed."""
    reason = str(error) if isinstance(error, PlatformError) else "the model answered what this API cannot read"
    return replies.failed(record.id, f"Inference failed: {reason}")


async def _schema(context: ApiContext, record: JobRecord) -> Schema:
    """Return the schema of the network, with the overrides of a model on this machine."""
    experiment = context.directory.experiment(record.org, record.experiment)
    path = workspaces.local_path(
        workspaces.resolve_artifact(_workspace(context, record), record.artifact, trusted=True)
    )
    declared = await asyncio.to_thread(kinds.read_declaration, path) if path else ""
    return kinds.schema(experiment.network_arch, declared)


def _workspace(context: ApiContext, record: JobRecord) -> Workspace | None:
    experiment = context.directory.experiment(record.org, record.experiment)
    return context.directory.workspace(record.org, experiment.workspace).storage if experiment.workspace else None


def _record(request: web.Request) -> JobRecord:
    """Return the record of a microservice of this experiment that is not stopped."""
    path = (request.match_info["org"], request.match_info["experiment"], request.match_info["job"])
    record = registering.get_job(request.app[CONTEXT].directory, *path)
    if record.kind != "inference_microservice" or record.status not in NOT_STOPPED:
        raise not_running(record.id)
    return record
