"""Status of a service of a target as that of a microservice. Pure."""

from collections.abc import Sequence
from typing import Final

from pilotlight.microservices.registry.records import PlatformStatus, State
from pilotlight.targets.error_from_log import failed_event
from pilotlight.targets.target import ReplicaStatus, RevisionStatus, ServiceStatus

RUNNING: Final = (
    "starting",
    "waking",
    "ready",
    "unready",
    "running",
)  # states of replicas whose process or container runs


def platform_status(status: ServiceStatus, tail: Sequence[str] = ()) -> PlatformStatus:
    """Return the status; `tail` are the last lines of its log."""
    revision, replica = next(iter(status.revisions), None), _replica(status)
    state = _state(status, revision, replica)
    reason = (revision.failure or revision.reason if revision else "") or status.message
    name = (replica.node or replica.handle or replica.name) if replica else ""
    phase = ""
    if replica and status.target == "kubernetes":
        name, phase = replica.name, "Running" if replica.state == "ready" else replica.state.capitalize()
    if state == "running":
        reason = "it is being stopped" if status.phase == "Stopping" else failed_event(tail)
    return PlatformStatus(state, name, phase, reason, tuple(tail))


def is_accepted(status: ServiceStatus) -> bool:
    """Return whether its daemon or queue has it, its process listens, it awaits GPUs or its model, or it has failed."""
    state, replica = platform_status(status).state, _replica(status)
    if state not in ("pending", "running"):
        return True
    if status.target == "local":
        return replica is not None and replica.state != "starting"
    return state == "running" or (replica is not None and bool(replica.handle or replica.state == "waiting"))


def _replica(status: ServiceStatus) -> ReplicaStatus | None:
    revision = next(iter(status.revisions), None)
    return next(reversed(revision.replicas), None) if revision else None


def _state(status: ServiceStatus, revision: RevisionStatus | None, replica: ReplicaStatus | None) -> State:
    if status.phase == "Stopping":
        return "running" if replica is not None and replica.state == "draining" else "stopped"
    if replica is not None and replica.state == "stopped":
        return "stopped"
    if replica is not None and replica.state in ("gone", "unknown"):
        return "gone" if replica.state == "gone" else "unknown"
    if status.phase == "Failed" or revision is None:
        return "failed"
    if revision.ready:
        return "running"
    if revision.failure:  # also while it is started again
        return "failed"
    return "running" if replica is not None and replica.state in RUNNING else "pending"
