"""What `microservice status` says of a model, and what is likely wrong with it: from its answers, log and platform."""

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import Struct, to_builtins

from pilotlight.microservices import asking, diagnosis, resources
from pilotlight.microservices.model import Entry, Seen
from pilotlight.microservices.secrets import redacted
from platformctl import refused_requests


class Model(Struct, frozen=True):
    """`phase` as diagnosis.py names it, `told` for people, `status` is our predictor's own page."""

    phase: str
    told: str
    status: Mapping[str, Any] = {}


UNREACHABLE: Final = Model("", "unreachable")
_PHASES: Final = {"initializing": "initializing", "model_loading": "loading", "model_not_ready": "loading"}


def model(verdict: asking.Verdict, status: Mapping[str, Any]) -> Model:
    """`ready`, or why not, in the words of its own error types."""
    if asking.is_there(verdict):
        return Model("ready", "ready", status)
    told = ": ".join(filter(None, (verdict.type or verdict.kind, verdict.message)))
    phase = "failed" if verdict.kind == "failed" else _PHASES.get(verdict.type, "initializing")
    return Model(phase, redacted(told, os.environ), status)


def findings(job_id: str, entry: Entry, seen: Seen, found: Model) -> list[dict[str, str]]:
    """Name, cause and advice of each; how long it has been so is at most how long it runs."""
    seconds = age(entry.started_at, datetime.now(UTC))
    evidence = diagnosis.Evidence(
        job_id=job_id, phase=found.phase or "initializing", phase_s=seconds, seen=seen, status=found.status,
        silent_s=seconds if found is UNREACHABLE else 0.0, errors=(found.told,) if found.phase == "failed" else (),
        rejected=refused_requests.noted(job_id),
        cpus=resources.cpus() if entry.platform == "local" else None,
        memory=resources.memory() if entry.platform == "local" else None,
    )  # fmt: skip
    rows = [to_builtins(each) for each in diagnosis.findings(evidence)]
    return [{name: redacted(text, os.environ) for name, text in row.items()} for row in rows]


def age(started_at: str, now: datetime) -> float:
    """0 where others have written something else there."""
    try:
        began = datetime.fromisoformat(started_at)
    except ValueError:
        return 0.0
    return max(0.0, (now - (began if began.tzinfo else began.replace(tzinfo=UTC))).total_seconds())
