"""A look at one microservice: its record, its platform and its server put together, with what is likely wrong."""

import time
from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from pilotlight.errors import PlatformError
from pilotlight.microservices import replies, resources
from pilotlight.microservices.api import talking
from pilotlight.microservices.api.desk import Desk
from pilotlight.microservices.diagnosis import Evidence, findings
from pilotlight.microservices.model import Seen
from pilotlight.microservices.records import JobRecord
from pilotlight.microservices.replies import Advice, Reply, StatusReport
from pilotlight.microservices.standing import Standing, judge, told


class Look(Struct, frozen=True):
    standing: Standing
    advice: tuple[Advice, ...] = ()

    def report(self, job_id: str) -> StatusReport:
        return replies.report(job_id, self.standing, self.advice)

    def reply(self, job_id: str) -> Reply:
        """To an inference request, where it cannot be sent on."""
        return replies.not_now(job_id, self.standing, self.advice)


async def look(desk: Desk, record: JobRecord) -> Look:
    try:
        seen = await desk.lifecycle.look(record)
    except PlatformError as error:
        return _unseen(record, error)
    said = await _said(desk, record, seen)
    standing = judge(record, seen, told(said) if said is not None else None)
    return Look(standing, _advice(desk, record, standing, seen, said))


def _unseen(record: JobRecord, error: PlatformError) -> Look:
    """Its platform cannot be asked, so that nobody knows whether it is there: that is told, with the reason."""
    standing = judge(record, None, None)
    if standing.phase == "initializing":
        standing = replace(standing, phase="not_ready", pod_status="Unknown")
    advice = error.hint or "ask again; whoever runs the platform sees why it does not answer"
    return Look(standing, (Advice("platform_unreachable", f"its platform cannot be asked: {error}", advice),))


async def _said(desk: Desk, record: JobRecord, seen: Seen | None) -> Mapping[str, Any] | None:
    if record.entry is None or seen is None or seen.state != "running":
        return None
    try:
        said = await talking.self_report(desk.session, await desk.lifecycle.way(record))
    except PlatformError:
        said = None
    if said is None:
        await desk.lifecycle.forget_way(record.id)
    return said


def _advice(
    desk: Desk, record: JobRecord, standing: Standing, seen: Seen | None, said: Mapping[str, Any] | None
) -> tuple[Advice, ...]:
    now = time.monotonic()
    voice_s = desk.since(record.id, "silent" if said is None else "heard", now)
    errors = (standing.initialization_error, standing.model_load_error, record.message)
    evidence = Evidence(
        job_id=record.id,
        phase=standing.phase,
        phase_s=desk.since(record.id, standing.phase, now),
        silent_s=voice_s if said is None else 0.0,
        seen=seen,
        status=said or {},
        errors=tuple(error for error in errors if error),
        rejected=desk.refused.get(record.id, ""),
        operations=desk.lifecycle.operations(record.id),
        cpus=resources.cpus() if record.platform == "local" else None,
        memory=resources.memory() if record.platform == "local" else None,
    )
    return advised(evidence)


def advised(evidence: Evidence) -> tuple[Advice, ...]:
    return tuple(Advice(found.name, found.cause, found.advice) for found in findings(evidence))
