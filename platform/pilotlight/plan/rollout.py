"""How a workload replaces its replicas: beside the old ones if there are devices for both, else in their place."""

from typing import Any

from pilotlight.plan.ledger import Ledger
from pilotlight.plan.model import Scaling
from pilotlight.plan.subject import Subject

Json = Any


def decide_strategy(subject: Subject, scaling: Scaling, ledger: Ledger) -> dict[str, Json]:
    """As the object of the mode spells it: Deployment's strategy, StatefulSet's updateStrategy, LeaderWorkerSet's."""
    if subject.serverless:
        _check_room_for_revision(subject, ledger)
        return {}
    if subject.mode == "stateful":
        return {"type": "RollingUpdate"}
    if subject.on_ray:
        ledger.decide(subject.component.role, "rollout", "KubeRay's own", "a RayCluster has no strategy to set")
        return {}
    surge, unavailable, reason = _surge(subject, scaling)
    if subject.mode == "multi-node":
        ledger.decide(subject.component.role, "rollout", f"surge {surge}", reason)
        # A set without spare devices must give up a group to get one: it has no Recreate.
        room = {"maxSurge": surge, "maxUnavailable": unavailable if surge else 1}
        return {"type": "RollingUpdate", "rollingUpdateConfiguration": room}
    if subject.component.deployment_strategy:
        path = f"{subject.component.role}.deploymentStrategy"
        ledger.decide(subject.component.role, "rollout", subject.component.deployment_strategy.get("type", ""), path)
        return dict(subject.component.deployment_strategy)
    if not surge and not unavailable:
        ledger.decide(subject.component.role, "rollout", "recreate", reason)
        return {"type": "Recreate"}
    ledger.decide(subject.component.role, "rollout", "surge" if surge else "one by one", reason)
    return {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}


def _surge(subject: Subject, scaling: Scaling) -> tuple[int, int, str]:
    """(maxSurge, maxUnavailable, reason); both 0: all must go before one can come."""
    needed, free = subject.gpus, subject.capabilities.gpus
    if not needed or free is None:
        return 1, 0, "no GPU is needed" if not needed else "the number of free GPUs is unknown"
    if free >= needed:
        return 1, 0, f"{free} GPUs are free and a replica needs {needed}"
    short = f"{free} GPUs are free, a replica needs {needed}"
    if scaling.min_replicas > 1:
        return 0, 1, f"{short}: the others serve meanwhile"
    return 0, 0, f"{short}: the old replica must end before the new one starts"


def _check_room_for_revision(subject: Subject, ledger: Ledger) -> None:
    """Knative starts a new revision beside the old one, and there is no setting against it."""
    needed, free = subject.gpus, subject.capabilities.gpus
    if needed and free is not None and free < needed:
        message = f"a new revision starts beside the old one and needs {needed} free GPUs, there are {free}; use raw"
        ledger.warn("PL352", subject.path(), message)
