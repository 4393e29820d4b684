"""start, inference, status and stop of a microservice, with bodies and codes of TAO's API. Thin over lifecycle.py."""

import asyncio
from typing import Any, Final
from uuid import uuid4

from aiohttp import web
from msgspec import json

from pilotlight.errors import NotFound, PlatformError, Throttled, UsageError
from pilotlight.microservices import kinds, parameters, predicting, registering, replies, starting, workspaces
from pilotlight.microservices.api import bodies, talking
from pilotlight.microservices.api.desk import ANSWER_S, DESK, Desk
from pilotlight.microservices.api.looking import advised, look
from pilotlight.microservices.api.written import reply, written
from pilotlight.microservices.calling import AskingFailed
from pilotlight.microservices.diagnosis import Evidence
from pilotlight.microservices.kinds import Schema
from pilotlight.microservices.model import Workspace
from pilotlight.microservices.parameters import Asked
from pilotlight.microservices.records import THERE, JobRecord
from pilotlight.microservices.replies import Reply
from pilotlight.microservices.ways import not_there
from pilotlight.microservices.wishes import wish_for
from pilotlight.targets.local.chronicle import utc

REFUSALS: Final = frozenset({400, 413, 415, 422})  # what the model says of a request that does not fit it


async def start(request: web.Request) -> web.Response:
    """Answered at once: the record is kept, and the rest goes on without the client."""
    desk, asked = request.app[DESK], json.decode(await request.read(), type=bodies.Start)
    org, experiment = request.match_info["org"], request.match_info["experiment"]
    if asked.num_gpus is not None and asked.num_gpus < 1:
        raise UsageError(f"num_gpus = {asked.num_gpus}, must be at least 1")
    parent = registering.parent_of(desk.directory, org, experiment, asked.parent_id)
    registering.admit(desk.directory, org, desk.environ)
    now, place = utc(), desk.place.platform
    record = JobRecord(
        str(uuid4()), org, experiment, "inference_microservice", "pending", now, now, parent.artifact, parent.id, place
    )
    wish, secret = wish_for(desk.directory, desk.place, record, asked.num_gpus or 0)
    starting.job(wish, {**desk.environ, **secret}, record.id)  # refuses at once what no platform could start
    desk.directory.add_job(record)
    desk.lifecycle.start(record, wish, secret)
    return reply(replies.Started(record.id))


async def status(request: web.Request) -> web.Response:
    """Of one that is being stopped too; of one that has ended nothing is told."""
    record = _record(request)
    return reply((await look(request.app[DESK], record)).report(record.id))


async def stop(request: web.Request) -> web.Response:
    """What could not be stopped stays `stopping`, and can be asked for again."""
    desk, record = request.app[DESK], _record(request)
    desk.forget(record.id)
    try:
        await desk.lifecycle.stop(record)
    except NotFound:
        raise
    except PlatformError as error:
        return written(replies.failed(record.id, f"It could not be stopped: {error}"))
    return reply(replies.Stopped(record.id))


async def inference(request: web.Request) -> web.Response:
    desk, record = request.app[DESK], _record(request)
    if record.status == "stopping":
        raise not_there(record.id)
    body = json.decode(await request.read(), type=dict[str, Any])
    schema = await _schema(desk, record)
    try:
        return written(await _asked(desk, record, schema, parameters.fitted(schema, body)))
    except UsageError as error:  # parameters and media that the caller can mend
        return written(_refused(desk, record, error))


async def _asked(desk: Desk, record: JobRecord, schema: Schema, asked: Asked) -> Reply:
    """Sent on to a model that is there, and has been seen to be."""
    if record.id not in desk.ready:
        seen = await look(desk, record)
        if seen.standing.phase != "ready":
            return seen.reply(record.id)
        desk.ready.add(record.id)
    return await _answer(desk, record, schema, asked)


async def _answer(desk: Desk, record: JobRecord, schema: Schema, asked: Asked) -> Reply:
    """Media are fetched and the model is asked in a thread; what fails is looked into before it is told."""
    workspace = _workspace(desk, record)

    def answered(url: str) -> Any:
        media = talking.brought(schema, asked.media, workspace, desk.limits, desk.environ) if asked.media else ()
        return predicting.ask(url, schema, asked, media, desk.limits, ANSWER_S)

    try:
        results = await desk.lifecycle.ask(record, answered)
    except AskingFailed as error:
        if error.status in REFUSALS:
            return _refused(desk, record, error)
        desk.ready.discard(record.id)
        seen = await look(desk, record)
        return seen.reply(record.id) if seen.standing.phase != "ready" else _failed(record, error)
    except (PlatformError, KeyError, IndexError, TypeError, ValueError) as error:
        if isinstance(error, UsageError | Throttled):
            raise
        return _failed(record, error)
    desk.refused.pop(record.id, None)
    return replies.completed(record.id, results)


def _refused(desk: Desk, record: JobRecord, error: PlatformError) -> Reply:
    """Kept until a request succeeds: a status says it too."""
    desk.refused[record.id] = str(error)
    return replies.refused(record.id, str(error), advised(Evidence(job_id=record.id, rejected=str(error))))


def _failed(record: JobRecord, error: Exception) -> Reply:
    """An answer that makes no sense is the model's failure too."""
    said = str(error) if isinstance(error, PlatformError) else "the model answered what this API cannot read"
    return replies.failed(record.id, f"Inference failed: {said}")


async def _schema(desk: Desk, record: JobRecord) -> Schema:
    """Of the network; a model on this machine may say in a file beside it what differs."""
    experiment = desk.directory.experiment(record.org, record.experiment)
    path = workspaces.local(workspaces.locate(_workspace(desk, record), record.artifact, trusted=True))
    declared = await asyncio.to_thread(kinds.beside, path) if path else ""
    return kinds.schema(experiment.network_arch, declared)


def _workspace(desk: Desk, record: JobRecord) -> Workspace | None:
    experiment = desk.directory.experiment(record.org, record.experiment)
    return desk.directory.workspace(record.org, experiment.workspace).storage if experiment.workspace else None


def _record(request: web.Request) -> JobRecord:
    """A microservice of this experiment that has been started and not stopped."""
    place = (request.match_info["org"], request.match_info["experiment"], request.match_info["job"])
    found = registering.job_of(request.app[DESK].directory, *place)
    if found.kind != "inference_microservice" or found.status not in THERE:
        raise not_there(found.id)
    return found
