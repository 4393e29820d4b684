"""How a microservice stands: one judgement from the kept record, what its platform sees and what it says itself. Pure.

kept record ─┐
platform ────┼─▶ Standing ─▶ replies.py
its /status ─┘
"""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from pilotlight.microservices.model import Seen
from pilotlight.microservices.records import JobRecord

Phase = Literal["initializing", "loading", "ready", "not_ready", "failed", "stopping"]


class Told(Struct, frozen=True):
    """What the server in it says of itself."""

    state: str  # initializing, loading, ready, failed, stopping
    reason: str = ""
    fetching: bool = False  # files of the model are on their way
    surveyed: bool = False  # its models were found, so that what failed is one of them


class Standing(Struct, frozen=True):
    phase: Phase
    initialization_error: str | None = None
    model_load_error: str | None = None
    pod_name: str = ""
    pod_status: str = ""


def told(document: Mapping[str, Any]) -> Told:
    """From the predictor's /status, booting or whole."""
    progress = document.get("progress") or {}
    done, total = progress.get("done_bytes", 0), progress.get("total_bytes", 0)
    fetching = bool(progress) and (total < 0 or done < total)
    reason = str(document.get("reason") or "")
    return Told(str(document.get("state", "")), reason, fetching, bool(document.get("models")))


def judge(record: JobRecord, seen: Seen | None, said: Told | None) -> Standing:
    """`seen`: None before the platform was asked to start it; `said`: None while nobody answers there."""
    pod = (seen.pod_name, seen.pod_status) if seen else ("", "Pending")
    if record.status == "stopping":
        return Standing("stopping", None, None, *pod)
    if record.status == "error":
        return Standing("failed", record.message or "it could not be started", None, *pod)
    if seen is None or seen.state == "pending":
        return Standing("initializing", None, None, *pod)
    if seen.state != "running":
        return _ended(seen, said, pod)
    return _running(said, pod)


def _ended(seen: Seen, said: Told | None, pod: tuple[str, str]) -> Standing:
    """A process that is gone says nothing; the platform's reason, or its last words, are what is known."""
    words = seen.reason or (seen.tail[-1] if seen.tail else "") or f"it ended ({seen.pod_status or seen.state})"
    if "out of memory" in " ".join((words, *seen.tail)).lower():
        return Standing("failed", None, words, *pod)
    return Standing("failed", words, None, *pod)


def _running(said: Told | None, pod: tuple[str, str]) -> Standing:
    if (
        said is None
        or said.state == "initializing"
        or (said.state == "loading" and (said.fetching or not said.surveyed))
    ):
        return Standing("initializing", None, None, *pod)
    if said.state == "loading":
        return Standing("loading", None, None, *pod)
    if said.state == "ready":
        return Standing("ready", None, None, *pod)
    if said.state != "failed":
        return Standing("not_ready", None, None, *pod)
    reason = said.reason or "the start failed"
    return Standing("failed", None, reason, *pod) if said.surveyed else Standing("failed", reason, None, *pod)
