"""Model status and likely causes for `microservice status`, from responses, log and platform."""

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import Struct, to_builtins

from pilotlight.microservices import asking, diagnosis, resources
from pilotlight.microservices.model import Entry, PlatformStatus
from pilotlight.microservices.secrets import redact
from platformctl import refused_requests


class ModelStatus(Struct, frozen=True):
    """`phase` as in diagnosis.py, `description` for the table, `status` from the predictor's own status page."""

    phase: str
    description: str
    status: Mapping[str, Any] = {}


UNREACHABLE: Final = ModelStatus("", "unreachable")
_PHASES: Final = {"initializing": "initializing", "model_loading": "loading", "model_not_ready": "loading"}


def model_status(verdict: asking.Verdict, status: Mapping[str, Any]) -> ModelStatus:
    """Return `ready`, or the error type and message of the verdict."""
    if asking.is_serving(verdict):
        return ModelStatus("ready", "ready", status)
    description = ": ".join(filter(None, (verdict.type or verdict.kind, verdict.message)))
    phase = "failed" if verdict.kind == "failed" else _PHASES.get(verdict.type, "initializing")
    return ModelStatus(phase, redact(description, os.environ), status)


def findings(job_id: str, entry: Entry, platform_status: PlatformStatus, model: ModelStatus) -> list[dict[str, str]]:
    """Return name, cause and advice of each finding. The time in a phase is bounded by the job's age."""
    seconds = age_s(entry.started_at, datetime.now(UTC))
    evidence = diagnosis.Evidence(
        job_id=job_id, phase=model.phase or "initializing", phase_s=seconds, platform=platform_status,
        status=model.status, silent_s=seconds if model is UNREACHABLE else 0.0,
        errors=(model.description,) if model.phase == "failed" else (),
        rejected=refused_requests.last_refusal(job_id),
        cpus=resources.cpus() if entry.platform == "local" else None,
        memory=resources.memory() if entry.platform == "local" else None,
    )  # fmt: skip
    rows = [to_builtins(each) for each in diagnosis.diagnose(evidence)]
    return [{name: redact(text, os.environ) for name, text in row.items()} for row in rows]


def age_s(started_at: str, now: datetime) -> float:
    """Return the seconds since a timestamp; 0 if it cannot be parsed."""
    try:
        started = datetime.fromisoformat(started_at)
    except ValueError:
        return 0.0
    return max(0.0, (now - (started if started.tzinfo else started.replace(tzinfo=UTC))).total_seconds())
