"""Rollout strategy of a workload: surge if there are free devices, else recreate."""

from typing import Any

from pilotlight.plan.ledger import DecisionLog
from pilotlight.plan.model import Scaling
from pilotlight.plan.subject import PlanContext

Json = Any


def decide_strategy(context: PlanContext, scaling: Scaling, log: DecisionLog) -> dict[str, Json]:
    """Return the strategy in the form of the mode's object: Deployment, StatefulSet or LeaderWorkerSet."""
    if context.serverless:
        _check_gpus_for_revision(context, log)
        return {}
    if context.mode == "stateful":
        return {"type": "RollingUpdate"}
    if context.on_ray:
        log.decide(context.component.role, "rollout", "KubeRay's own", "a RayCluster has no strategy to set")
        return {}
    surge, unavailable, reason = _surge(context, scaling)
    if context.mode == "multi-node":
        log.decide(context.component.role, "rollout", f"surge {surge}", reason)
        # A LeaderWorkerSet has no Recreate: without spare devices it must stop a group first.
        limits = {"maxSurge": surge, "maxUnavailable": unavailable if surge else 1}
        return {"type": "RollingUpdate", "rollingUpdateConfiguration": limits}
    if context.component.deployment_strategy:
        path = f"{context.component.role}.deploymentStrategy"
        log.decide(context.component.role, "rollout", context.component.deployment_strategy.get("type", ""), path)
        return dict(context.component.deployment_strategy)
    if not surge and not unavailable:
        log.decide(context.component.role, "rollout", "recreate", reason)
        return {"type": "Recreate"}
    log.decide(context.component.role, "rollout", "surge" if surge else "one by one", reason)
    return {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}


def _surge(context: PlanContext, scaling: Scaling) -> tuple[int, int, str]:
    """Return (maxSurge, maxUnavailable, reason); both 0: recreate."""
    needed, free = context.gpus, context.capabilities.gpus
    if not needed or free is None:
        return 1, 0, "no GPU is needed" if not needed else "the number of free GPUs is unknown"
    if free >= needed:
        return 1, 0, f"{free} GPUs are free and a replica needs {needed}"
    short = f"{free} GPUs are free, a replica needs {needed}"
    if scaling.min_replicas > 1:
        return 0, 1, f"{short}: the others serve meanwhile"
    return 0, 0, f"{short}: the old replica must end before the new one starts"


def _check_gpus_for_revision(context: PlanContext, log: DecisionLog) -> None:
    """Warn about missing GPUs: Knative always starts a new revision before it stops the old one."""
    needed, free = context.gpus, context.capabilities.gpus
    if needed and free is not None and free < needed:
        message = f"a new revision starts beside the old one and needs {needed} free GPUs, there are {free}; use raw"
        log.warn("PL352", context.path(), message)
