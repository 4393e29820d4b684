"""Model status and likely causes for `microservice status` and `doctor`, from responses, log and platform.

Servers do not record refusals, so the reason of the last refused `infer` is stored; the next success clears it. The
declaration of a model's parameters is stored too, for `infer` with pictures.
"""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, to_builtins

from pilotlight.errors import PlatformError
from pilotlight.k8s.timestamps import parse_utc
from pilotlight.microservices import diagnosis
from pilotlight.microservices.inference import client
from pilotlight.microservices.registry import model_kinds
from pilotlight.microservices.registry.records import Entry, PlatformStatus
from pilotlight.targets.local.home_directory import home
from pilotlight.targets.secret_redaction import redact
from pilotlight.wire import machine
from platformctl.microservice import shared_options

LONGEST: Final = 500
REFUSED: Final = "refused"
PROBE_S: Final = 10.0
CHAT_INPUT: Final = "messages"  # Pilotlight predictor: a model with this input serves chat
_NAME: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,62}")  # job ids come from a shared registry: no path separators
_PHASES: Final = {"initializing": "initializing", "model_loading": "loading", "model_not_ready": "loading"}


def record(job_id: str, text: str, suffix: str = REFUSED) -> None:
    """Store a text, which must not contain secrets. Write errors are ignored."""
    path = _path(job_id, suffix)
    if path is None:
        return
    with suppress(OSError):
        home(os.environ).create()
        path.parent.mkdir(mode=0o700, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with open(os.open(path, flags, 0o600), "w") as file:
            file.write(text)


def recorded(job_id: str, suffix: str = REFUSED) -> str:
    """Return a stored text, or empty; the reason of a refusal only if the last request was refused."""
    path = _path(job_id, suffix)
    with suppress(OSError):
        return path.read_text(errors="replace") if path is not None else ""
    return ""


def clear(job_id: str, *suffixes: str) -> None:
    """Remove stored texts, all unless `suffixes` are given."""
    for suffix in suffixes or (REFUSED, model_kinds.FILE):
        path = _path(job_id, suffix)
        if path is not None:
            with suppress(OSError):
                path.unlink(missing_ok=True)


def _path(job_id: str, suffix: str) -> Path | None:
    return home(os.environ).root / "microservices" / f"{job_id}.{suffix}" if _NAME.fullmatch(job_id) else None


class ModelStatus(Struct, frozen=True):
    """`phase` as in diagnosis.py, `description` for the table, `status` from the predictor's own status page."""

    phase: str
    description: str
    status: Mapping[str, Any] = {}


UNREACHABLE: Final = ModelStatus("", "unreachable")


def model_status(verdict: client.Verdict, status: Mapping[str, Any]) -> ModelStatus:
    """Return `ready`, or the error type and message of the verdict."""
    if client.is_serving(verdict):
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
        rejected=recorded(job_id)[:LONGEST],
        cpus=machine.usable_cpus() if entry.platform == "local" else None,
        memory=machine.available_memory() if entry.platform == "local" else None,
    )  # fmt: skip
    rows = [to_builtins(each) for each in diagnosis.diagnose(evidence)]
    return [{name: redact(text, os.environ) for name, text in row.items()} for row in rows]


def age_s(started_at: str, now: datetime) -> float:
    """Return the seconds since a timestamp; 0 if it cannot be parsed."""
    try:
        started = parse_utc(started_at)
    except ValueError:
        return 0.0
    return max(0.0, (now - started).total_seconds())


def probe_model(job_id: str, entry: Entry, timeout_s: float = PROBE_S) -> ModelStatus:
    target = shared_options.platform_of(entry)
    try:
        with target.open_route(job_id, entry) as url:
            verdict = client.classify(client.post_chat(url, client.PROBE, timeout_s))
            return model_status(verdict, client.get_document(url, "/status", timeout_s))
    except (PlatformError, OSError):
        return UNREACHABLE


def accepts_tensors(job_id: str, entry: Entry) -> bool | None:
    """Return None if the model's metadata does not say."""
    try:
        with shared_options.platform_of(entry).open_route(job_id, entry) as url:
            inputs = client.get_document(url, client.MODEL, PROBE_S).get("inputs")
    except (PlatformError, OSError):
        return None
    return all(each["name"] != CHAT_INPUT for each in inputs) if inputs else None
