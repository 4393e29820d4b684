"""Handlers of microservices: start, inference, status and stop, with bodies and codes of TAO's API.

`observe` combines record, platform and server into a health with a diagnosis; the effects are in
jobs/microservice_operations.py.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing, suppress
from typing import Any, Final
from uuid import uuid4

from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout, UnixConnector, web
from msgspec import UNSET
from msgspec.structs import replace

from pilotlight.api.json_bodies import decode_request, json_response, read_body
from pilotlight.errors import NotFound, PlatformError, Throttled, UsageError
from pilotlight.k8s.timestamps import utc_now
from pilotlight.microservices.api import request_bodies
from pilotlight.microservices.api.api_context import CONTEXT, INFERENCE_TIMEOUT_S, ApiContext, job_path
from pilotlight.microservices.api.request_bodies import to_response
from pilotlight.microservices.diagnosis import Advice, Evidence, diagnose
from pilotlight.microservices.inference import client, predict
from pilotlight.microservices.inference.client import InferenceFailed
from pilotlight.microservices.jobs import health_responses as responses
from pilotlight.microservices.jobs import launcher, org_resources
from pilotlight.microservices.jobs.health_responses import ApiResponse, Health
from pilotlight.microservices.jobs.microservice_operations import not_running
from pilotlight.microservices.jobs.model_isolation import check_model
from pilotlight.microservices.jobs.start_request import model_of, start_request_for
from pilotlight.microservices.media import MediaRefused
from pilotlight.microservices.registry import model_kinds
from pilotlight.microservices.registry.model_kinds import ModelRequest, Schema
from pilotlight.microservices.registry.records import NOT_STOPPED, JobRecord, PlatformStatus, StoredWorkspace
from pilotlight.microservices.registry.secret_references import MissingCredential
from pilotlight.targets.local.home_directory import ENV_HOME
from pilotlight.targets.secret_redaction import redact
from pilotlight.wire import machine
from pilotlight.wire.unix_socket import HeldSocket, is_unix, split_url

StatusDocument = Mapping[str, Any]  # of /status
STATUS_TIMEOUT: Final = ClientTimeout(total=5.0)
MAX_STATUS_BYTES: Final = 1 << 20
MAX_LOG_LINES: Final = 50  # platforms read no more of a log
MAX_LOG_LINE: Final = 4096  # characters
# The equivalent of /status, by the error types of a chat.
STATES: Final[Mapping[str, StatusDocument]] = {
    "initializing": {"state": "initializing"},
    "model_loading": {"state": "loading", "models": True},
    "model_not_ready": {"state": "stopping"},
}
REJECTIONS: Final = frozenset({400, 413, 415, 422})  # the model rejects the request


async def start(request: web.Request) -> web.Response:
    """Record the job and start it in the background. A missing credential is an error of its status, as in TAO."""
    context, body = request.app[CONTEXT], await read_body(request, request_bodies.Start)
    org, experiment = request.match_info["org"], request.match_info["experiment"]
    if body.num_gpus is not None and body.num_gpus < 1:
        raise UsageError(f"num_gpus = {body.num_gpus}, must be at least 1")
    parent = org_resources.get_parent(context.store, org, experiment, body.parent_id)
    org_resources.check_quota(context.store, org, context.environ)
    now = utc_now()
    record = JobRecord(
        str(uuid4()), org, experiment, "inference_microservice", "pending", now, now, parent.artifact, parent.id,
        context.settings.platform, by_operator=parent.by_operator,
    )  # fmt: skip
    try:
        start_request, secret = start_request_for(context.store, context.settings, record, body.num_gpus or 1)
    except MissingCredential as error:
        context.store.add_job(replace(record, status="error", message=str(error)), context.max_records)
        return json_response(responses.Started(record.id))
    environ = {**context.environ, **secret}
    launcher.build_job(start_request, environ, record.id)  # reject now what no platform could start
    await asyncio.to_thread(check_model, org, start_request.model_path, start_request.isolation)
    context.store.add_job(record, context.max_records)
    context.operations.start(record, start_request, secret)
    return json_response(responses.Started(record.id))


async def status(request: web.Request) -> web.Response:
    """Return the status, also of a microservice that is being stopped. Raise NotFound after its end."""
    record = _record(request)
    return json_response(responses.status_report(record.id, await observe(request.app[CONTEXT], record)))


async def logs(request: web.Request) -> web.Response:
    """Return the end of its log, without secrets and paths of the platform."""
    context, record = request.app[CONTEXT], _record(request)
    tail = request.query.get("tail", str(MAX_LOG_LINES))
    if not re.fullmatch("[0-9]{1,3}", tail) or not 1 <= int(tail) <= MAX_LOG_LINES:
        raise UsageError(f"tail = {tail[:80]}, must be a whole number from 1 to {MAX_LOG_LINES}")
    try:
        status = await context.operations.platform_status(record)
    except PlatformError as error:
        return json_response(responses.Failed(record.id, f"Its log cannot be read: {error}"), 503)
    workspace, secret = _workspace(context, record), dict[str, str]()
    with suppress(PlatformError):  # a credential that is not set any more
        secret = {**org_resources.access(workspace.storage if workspace else None, context.environ).secret}
    secret[ENV_HOME] = str(context.home.root)
    text = redact("\n".join(status.tail if status else ()), {**context.environ, **secret}, secret)
    return json_response(
        request_bodies.Logs(record.id, tuple(line[:MAX_LOG_LINE] for line in text.splitlines()[-int(tail) :]))
    )


async def stop(request: web.Request) -> web.Response:
    """Stop a microservice. After an error it stays `stopping`, and stop can be repeated."""
    context, record = request.app[CONTEXT], _record(request)
    context.forget(record.id)
    try:
        await context.operations.stop(record)
    except NotFound:
        raise
    except PlatformError as error:
        return json_response(responses.Failed(record.id, f"It could not be stopped: {error}"), 503)
    return json_response(responses.Stopped(record.id))


async def inference(request: web.Request) -> web.Response:
    context, record = request.app[CONTEXT], _record(request)
    if record.status == "stopping":
        return to_response(responses.unavailable(record.id, Health("stopping")))
    body = decode_request(await request.read(), dict[str, Any])
    experiment = context.store.experiment(record.org, record.experiment)
    workspace = context.store.workspace_of(experiment)
    model, _ = model_of(context.settings, record, workspace)
    if "://" in model and (waiting := await _unready(context, record)):  # its store may stall, and is not asked before
        return to_response(waiting)
    try:
        declared = await context.declaration(record.id, model, workspace.storage if workspace else None)
        schema = await asyncio.to_thread(model_kinds.schema, experiment.network_arch, declared, experiment.kind)
    except UsageError:
        raise
    except PlatformError as error:  # its store cannot be read
        return to_response(_failed(record, error))
    try:
        request_values = model_kinds.validate(schema, body)
        answer = await _unready(context, record) or await _forward(context, record, schema, request_values)
        return to_response(answer)
    except UsageError as error:  # parameters and media that the client can correct
        return to_response(_rejected(context, record, error))


async def observe(context: ApiContext, record: JobRecord) -> Health:
    try:
        status = await context.operations.platform_status(record)
    except PlatformError as error:
        health = responses.assess(record, None, None)
        if health.phase == "initializing":
            health = replace(health, phase="not_ready", pod_status="Unknown")
        advice = error.hint or "retry; the operator of the platform can see the cause"
        unreachable = Advice("platform_unreachable", f"its platform cannot be reached: {error}", advice)
        return replace(health, diagnosis=(unreachable,))
    server = None
    if record.entry is not None and status is not None and status.state == "running":
        with suppress(PlatformError):
            server = await server_status(context.session, await context.operations.url(record))
        if server is None:
            await context.operations.close_route(record.id)
    health = responses.assess(record, status, server)
    return replace(health, diagnosis=diagnose(_evidence(context, record, health, status, server)))


def _evidence(
    context: ApiContext, record: JobRecord, health: Health, status: PlatformStatus | None, server: StatusDocument | None
) -> Evidence:
    now, silent, local = time.monotonic(), server is None, record.platform == "local"
    contact_s = context.seconds_in(record.id, "silent" if silent else "responding", now)
    errors = (health.initialization_error, health.model_load_error, record.message)
    return Evidence(
        job_id=record.id, phase=health.phase, phase_s=context.seconds_in(record.id, health.phase, now),
        silent_s=contact_s if silent else 0.0, platform=status, status=server or {}, over_http=True,
        errors=tuple(error for error in errors if error), rejected=context.rejections.get(record.id, ""),
        operations=context.operations.operations(record.id),
        cpus=machine.usable_cpus() if local else None, memory=machine.available_memory() if local else None,
    )  # fmt: skip


async def server_status(session: ClientSession, url: str) -> StatusDocument | None:
    """Return the status in the format of the predictor's /status; None: no response.

    Images without /status get an empty chat request, which they answer with 202 while they load.
    """
    try:
        async with _session_for(url, session) as (http, base):
            async with http.get(f"{base}/status", timeout=STATUS_TIMEOUT, allow_redirects=False) as response:
                document = await _read_document(response) if response.status == 200 else None
            return document if isinstance(document, dict) else await _probe_by_chat(http, base)
    except (ClientError, TimeoutError, OSError):
        return None


@asynccontextmanager
async def _session_for(url: str, session: ClientSession) -> AsyncIterator[tuple[ClientSession, str]]:
    """Yield a session that connects to the URL of a route, and its HTTP URL."""
    if not is_unix(url):
        yield session, url
        return
    with closing(HeldSocket(*split_url(url))) as held:
        held.hold()
        connector = UnixConnector(held.address)
        async with ClientSession(connector=connector, auto_decompress=False, headers=session.headers) as own:
            yield own, "http://localhost"


async def _probe_by_chat(session: ClientSession, url: str) -> StatusDocument:
    """Derive the status from a chat request: any response but 202, 429 and 503 is one of a ready server."""
    path = f"{url}{client.PATH}"
    async with session.post(path, json=client.PROBE, timeout=STATUS_TIMEOUT, allow_redirects=False) as response:
        document = await _read_document(response)
    verdict = client.classify(client.ChatResponse(response.status, {}, document))
    if verdict.type in client.GIVE_UP:
        return {"state": "failed", "reason": verdict.message, "models": verdict.type == "model_load_error"}
    if verdict.kind == "again":
        return STATES.get(verdict.type, STATES["model_loading"])
    return {"state": "ready"}


async def _read_document(response: ClientResponse) -> Any:
    """Parse the begin of a response, which may be one of an org's code."""
    try:
        document = client.parse_body(await response.content.readexactly(MAX_STATUS_BYTES))
    except asyncio.IncompleteReadError as error:
        document = client.parse_body(error.partial)
    progress = document.get("progress") if isinstance(document, dict) else None
    if progress and not (isinstance(progress, dict) and all(isinstance(each, int) for each in progress.values())):
        del document["progress"]
    return document


async def _unready(context: ApiContext, record: JobRecord) -> ApiResponse | None:
    """Return the response to an inference request while the model is not ready."""
    if record.id not in context.ready:
        health = await observe(context, record)
        if health.phase != "ready":
            return responses.unavailable(record.id, health)
        context.ready.add(record.id)
    return None


async def _forward(context: ApiContext, record: JobRecord, schema: Schema, model_request: ModelRequest) -> ApiResponse:
    """Fetch media and call the model in a thread. After a failure the status is checked for its cause."""
    stored, references = _workspace(context, record), model_request.media
    workspace = stored.storage if stored else None

    def call(url: str) -> Any:
        media = predict.load_media(schema, references, workspace, context.limits, context.environ) if references else ()
        return predict.predict(url, schema, model_request, media, context.limits, INFERENCE_TIMEOUT_S)

    try:
        results = await context.operations.run_inference(record, call)
    except InferenceFailed as error:
        if error.status in REJECTIONS:
            return _rejected(context, record, error)
        context.ready.discard(record.id)
        return await _unready(context, record) or _failed(record, error)
    except (PlatformError, KeyError, IndexError, TypeError, ValueError) as error:
        if isinstance(error, UsageError | Throttled):
            raise
        return _failed(record, error)
    context.rejections.pop(record.id, None)
    return ApiResponse(200, responses.Completed(record.id, results))


def _rejected(context: ApiContext, record: JobRecord, error: PlatformError) -> ApiResponse:
    """Return 400 and store the reason for the status until a request succeeds, unless it is one of media alone."""
    media = isinstance(error, MediaRefused)
    if not media:
        context.rejections[record.id] = str(error)
    evidence = Evidence(job_id=record.id, rejected=str(error), rejected_media=media)
    return ApiResponse(400, responses.Failed(record.id, str(error), diagnosis=diagnose(evidence) or UNSET))


def _failed(record: JobRecord, error: Exception) -> ApiResponse:
    """Return 503, also where the model's response cannot be parsed."""
    reason = str(error) if isinstance(error, PlatformError) else "the model returned an unreadable response"
    return ApiResponse(503, responses.Failed(record.id, f"Inference failed: {reason}"))


def _workspace(context: ApiContext, record: JobRecord) -> StoredWorkspace | None:
    return context.store.workspace_of(context.store.experiment(record.org, record.experiment))


def _record(request: web.Request) -> JobRecord:
    """Return the record of a microservice of this experiment that is not stopped."""
    record = org_resources.get_job(request.app[CONTEXT].store, *job_path(request))
    if record.kind != "inference_microservice" or record.status not in NOT_STOPPED:
        raise not_running(record.id)
    return record
