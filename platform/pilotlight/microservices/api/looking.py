"""Observation of one microservice: health from its record, platform and server, with a diagnosis."""

import time
from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from pilotlight.errors import PlatformError
from pilotlight.microservices import replies, resources
from pilotlight.microservices.api import talking
from pilotlight.microservices.api.desk import ApiContext
from pilotlight.microservices.diagnosis import Evidence, diagnose
from pilotlight.microservices.model import PlatformStatus
from pilotlight.microservices.records import JobRecord
from pilotlight.microservices.replies import Advice, ApiResponse, StatusReport
from pilotlight.microservices.standing import Health, assess, parse_server_status


class Observation(Struct, frozen=True):
    health: Health
    advice: tuple[Advice, ...] = ()

    def report(self, job_id: str) -> StatusReport:
        return replies.status_report(job_id, self.health, self.advice)

    def response(self, job_id: str) -> ApiResponse:
        """Return the response to an inference request that cannot be forwarded."""
        return replies.unavailable(job_id, self.health, self.advice)


async def observe(context: ApiContext, record: JobRecord) -> Observation:
    try:
        status = await context.lifecycle.platform_status(record)
    except PlatformError as error:
        return _unreachable(record, error)
    server = await _server_status(context, record, status)
    health = assess(record, status, parse_server_status(server) if server is not None else None)
    return Observation(health, _advice(context, record, health, status, server))


def _unreachable(record: JobRecord, error: PlatformError) -> Observation:
    """Return the observation where the platform is unreachable, with the reason."""
    health = assess(record, None, None)
    if health.phase == "initializing":
        health = replace(health, phase="not_ready", pod_status="Unknown")
    advice = error.hint or "ask again; whoever runs the platform sees why it does not answer"
    return Observation(health, (Advice("platform_unreachable", f"its platform cannot be asked: {error}", advice),))


async def _server_status(
    context: ApiContext, record: JobRecord, status: PlatformStatus | None
) -> Mapping[str, Any] | None:
    if record.entry is None or status is None or status.state != "running":
        return None
    try:
        server = await talking.server_status(context.session, await context.lifecycle.url(record))
    except PlatformError:
        server = None
    if server is None:
        await context.lifecycle.close_route(record.id)
    return server


def _advice(
    context: ApiContext,
    record: JobRecord,
    health: Health,
    status: PlatformStatus | None,
    server: Mapping[str, Any] | None,
) -> tuple[Advice, ...]:
    now = time.monotonic()
    contact_s = context.seconds_in(record.id, "silent" if server is None else "responding", now)
    errors = (health.initialization_error, health.model_load_error, record.message)
    evidence = Evidence(
        job_id=record.id,
        phase=health.phase,
        phase_s=context.seconds_in(record.id, health.phase, now),
        silent_s=contact_s if server is None else 0.0,
        platform=status,
        status=server or {},
        errors=tuple(error for error in errors if error),
        rejected=context.rejections.get(record.id, ""),
        operations=context.lifecycle.operations(record.id),
        cpus=resources.cpus() if record.platform == "local" else None,
        memory=resources.memory() if record.platform == "local" else None,
    )
    return to_advice(evidence)


def to_advice(evidence: Evidence) -> tuple[Advice, ...]:
    return tuple(Advice(finding.name, finding.cause, finding.advice) for finding in diagnose(evidence))
