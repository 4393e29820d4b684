"""Health of a microservice, from its record, its platform status and its own /status, and the responses for it. Pure.

Bodies, status codes and Retry-After are those of TAO's API; api/jobs.py sends them.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

from msgspec import UNSET, Struct, UnsetType

from pilotlight.microservices.diagnosis import Advice
from pilotlight.microservices.registry.records import JobRecord, PlatformStatus

Phase = Literal["initializing", "loading", "ready", "not_ready", "failed", "stopping"]
# Responses while it is not ready: status code, message, and Retry-After in seconds, shorter for a download than for a
# load, which is one long step.
WAITING: Final[Mapping[Literal["initializing", "loading", "not_ready"], tuple[int, str, int]]] = {
    "initializing": (202, "Server is initializing (downloading files, setting up), please wait", 5),
    "loading": (202, "Model is currently loading, please wait and try again", 10),
    "not_ready": (503, "Model not loaded yet, please try again later", 10),
}
HEALTH: Final[Mapping[Phase, str]] = {"ready": "healthy", "failed": "error"}  # others are called as the phase


class Health(Struct, frozen=True):
    phase: Phase
    pod_name: str = ""
    pod_status: str = ""
    initialization_error: str | None = None
    model_load_error: str | None = None
    diagnosis: tuple[Advice, ...] = ()


def assess(record: JobRecord, platform: PlatformStatus | None, server: Mapping[str, Any] | None) -> Health:
    """Return the health. `platform`: None before it was started there; `server`: its /status, None if it is silent."""
    pod = (platform.pod_name, platform.pod_status) if platform else ("", "Pending")
    if record.status == "stopping":
        return Health("stopping", *pod)
    if record.status == "error":
        return Health("failed", *pod, record.message or "it could not be started")
    if platform is None or platform.state == "pending":
        return Health("initializing", *pod)
    if platform.state == "running":
        return _running(server, pod)
    last_line = platform.tail[-1] if platform.tail else ""
    reason = platform.reason or last_line or f"it exited ({platform.pod_status})"
    if "out of memory" in " ".join((reason, *platform.tail)).lower():
        return Health("failed", *pod, None, reason)
    return Health("failed", *pod, reason)


def _running(server: Mapping[str, Any] | None, pod: tuple[str, str]) -> Health:
    state = "initializing" if server is None else server.get("state")
    if server is None or state in ("initializing", "ready"):
        return Health("ready" if state == "ready" else "initializing", *pod)
    surveyed = bool(server.get("models"))  # models were found, so a failure is one of a model
    if state == "loading":
        progress = server.get("progress") or {}
        done, total = progress.get("done_bytes", 0), progress.get("total_bytes", 0)
        fetching = bool(progress) and (total < 0 or done < total)
        return Health("initializing" if fetching or not surveyed else "loading", *pod)
    if state != "failed":
        return Health("not_ready", *pod)
    reason = str(server.get("reason") or "") or "the start failed"
    return Health("failed", *pod, None, reason) if surveyed else Health("failed", *pod, reason)


class Started(Struct, frozen=True):
    job_id: str
    status: Literal["pending"] = "pending"
    message: str = "Inference microservice starting"


class Stopped(Struct, frozen=True):
    job_id: str
    status: Literal["stopped"] = "stopped"
    message: str = "Inference microservice stopped successfully"


class StatusReport(Struct, frozen=True):
    job_id: str
    model_loaded: bool
    model_loading: bool
    server_initializing: bool
    initialization_error: str | None
    model_load_error: str | None
    status: str
    pod_name: str
    pod_status: str
    diagnosis: tuple[Advice, ...] = ()


class Completed(Struct, frozen=True):
    job_id: str
    results: Any
    status: Literal["completed"] = "completed"
    message: str = "Inference completed successfully"


class Waiting(Struct, frozen=True):
    """202, or 503 before the model's load has begun: retry."""

    job_id: str
    status: Literal["initializing", "loading", "not_ready"]
    message: str


class Failed(Struct, frozen=True):
    """503: a retry does not help, or this request failed. 400: the request is invalid."""

    job_id: str
    error: str
    status: Literal["error"] = "error"
    diagnosis: tuple[Advice, ...] | UnsetType = UNSET


class ApiResponse(Struct, frozen=True):
    status: int
    body: Any
    retry_after_s: int | None = None


def status_report(job_id: str, health: Health) -> StatusReport:
    phase = health.phase
    return StatusReport(
        job_id=job_id, model_loaded=phase == "ready", model_loading=phase == "loading",
        server_initializing=phase == "initializing", initialization_error=health.initialization_error,
        model_load_error=health.model_load_error, status=HEALTH.get(phase, phase),
        pod_name=health.pod_name, pod_status=health.pod_status, diagnosis=health.diagnosis,
    )  # fmt: skip


def unavailable(job_id: str, health: Health) -> ApiResponse:
    """Return the response to an inference request that cannot be sent to the model."""
    if health.phase == "failed":
        error = f"Server initialization failed: {health.initialization_error or 'unknown reason'}"
        if health.model_load_error is not None:
            error = f"Model failed to load: {health.model_load_error}"
        return ApiResponse(503, Failed(job_id, error, diagnosis=health.diagnosis or UNSET))
    word = health.phase if health.phase in ("initializing", "loading") else "not_ready"
    status, message, retry_after_s = WAITING[word]
    return ApiResponse(status, Waiting(job_id, word, message), retry_after_s)
