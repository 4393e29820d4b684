"""Health of a microservice, from its record, its platform status and its own status. Pure.

record ──────┐
platform ────┼─▶ Health ─▶ replies.py
its /status ─┘
"""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from pilotlight.microservices.model import PlatformStatus
from pilotlight.microservices.records import JobRecord

Phase = Literal["initializing", "loading", "ready", "not_ready", "failed", "stopping"]


class ServerStatus(Struct, frozen=True):
    """Status of the server in a microservice, from its /status."""

    state: str  # initializing, loading, ready, failed, stopping
    reason: str = ""
    fetching: bool = False  # the model is being downloaded
    surveyed: bool = False  # models were found, so a failure is one of a model


class Health(Struct, frozen=True):
    phase: Phase
    initialization_error: str | None = None
    model_load_error: str | None = None
    pod_name: str = ""
    pod_status: str = ""


def parse_server_status(document: Mapping[str, Any]) -> ServerStatus:
    """Parse the predictor's /status, also during its startup."""
    progress = document.get("progress") or {}
    done, total = progress.get("done_bytes", 0), progress.get("total_bytes", 0)
    fetching = bool(progress) and (total < 0 or done < total)
    reason = str(document.get("reason") or "")
    return ServerStatus(str(document.get("state", "")), reason, fetching, bool(document.get("models")))


def assess(record: JobRecord, platform: PlatformStatus | None, server: ServerStatus | None) -> Health:
    """Return the health. `seen`: None before it was started on the platform; `said`: None without a response."""
    pod = (platform.pod_name, platform.pod_status) if platform else ("", "Pending")
    if record.status == "stopping":
        return Health("stopping", None, None, *pod)
    if record.status == "error":
        return Health("failed", record.message or "it could not be started", None, *pod)
    if platform is None or platform.state == "pending":
        return Health("initializing", None, None, *pod)
    if platform.state != "running":
        return _ended(platform, server, pod)
    return _running(server, pod)


def _ended(platform: PlatformStatus, server: ServerStatus | None, pod: tuple[str, str]) -> Health:
    """Return the health of a terminated process, with the platform's reason or its last log line."""
    reason = (
        platform.reason
        or (platform.tail[-1] if platform.tail else "")
        or f"it ended ({platform.pod_status or platform.state})"
    )
    if "out of memory" in " ".join((reason, *platform.tail)).lower():
        return Health("failed", None, reason, *pod)
    return Health("failed", reason, None, *pod)


def _running(server: ServerStatus | None, pod: tuple[str, str]) -> Health:
    if (
        server is None
        or server.state == "initializing"
        or (server.state == "loading" and (server.fetching or not server.surveyed))
    ):
        return Health("initializing", None, None, *pod)
    if server.state == "loading":
        return Health("loading", None, None, *pod)
    if server.state == "ready":
        return Health("ready", None, None, *pod)
    if server.state != "failed":
        return Health("not_ready", None, None, *pod)
    reason = server.reason or "the start failed"
    return Health("failed", None, reason, *pod) if server.surveyed else Health("failed", reason, None, *pod)
