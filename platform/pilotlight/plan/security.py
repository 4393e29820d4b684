"""Security contexts: Pod Security *restricted* for our image, *baseline* for others.

The user's settings win. In serverless mode everything is set on containers: a pod-level context needs a Knative feature
flag.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from pilotlight.plan.ledger import DecisionLog
from pilotlight.plan.subject import PlanContext

Json = Any
Level = Literal["restricted", "baseline", "privileged"]
LEVELS: Final[dict[str, Level]] = {
    "restricted": "restricted",
    "baseline": "baseline",
    "privileged": "privileged",
}
USER: Final = 65532
SECCOMP: Final = {"type": "RuntimeDefault"}
_FORBIDDEN_AT_BASELINE: Final = ("hostPath",)
_HOST_FIELDS: Final = ("hostNetwork", "hostPID", "hostIPC")


def decide_level(context: PlanContext, volumes: list[Json], log: DecisionLog) -> Level:
    """Return the Pod Security level that the pod meets; warn if it is not restricted."""
    forced = context.capabilities.pod_security
    role, path = context.component.role, context.path()
    if forced in LEVELS:
        log.decide(role, "pod security", forced, "--pod-security")
        return LEVELS[forced]
    beyond = list(_beyond_baseline(context.choice.pod, context.choice.container, volumes))
    if beyond:
        log.warn("PL350", path, f"{', '.join(beyond)} needs a namespace that admits privileged pods")
        return "privileged"
    if context.choice.is_pilotlight:
        log.decide(role, "pod security", "restricted", "our image needs nothing more")
        return "restricted"
    log.warn(
        "PL351", path,
        "the image is not ours and may need root, so its pods meet only baseline; force --pod-security restricted "
        "if it does not",
    )  # fmt: skip
    return "baseline"


def _beyond_baseline(pod: Mapping[str, Json], container: Mapping[str, Json], volumes: list[Json]) -> Iterator[str]:
    for volume in [*(pod.get("volumes") or ()), *volumes]:
        if any(kind in volume for kind in _FORBIDDEN_AT_BASELINE):
            yield f"hostPath volume {volume['name']}"
    yield from (f"{name}: true" for name in _HOST_FIELDS if pod.get(name))
    security = container.get("securityContext") or {}
    if security.get("privileged"):
        yield "privileged: true"
    if (security.get("capabilities") or {}).get("add"):
        yield "added capabilities"


def container_context(level: Level, ours: bool, written: Mapping[str, Json]) -> dict[str, Json]:
    added = (written.get("capabilities") or {}).get("add")
    if not ours and (written.get("privileged") or added):
        return dict(written)
    security: dict[str, Json] = {"allowPrivilegeEscalation": False, "seccompProfile": dict(SECCOMP)}
    if level == "restricted" or ours:
        security |= {"capabilities": {"drop": ["ALL"]}, "runAsNonRoot": True}
    if ours:
        security |= {"readOnlyRootFilesystem": True, "runAsUser": USER, "runAsGroup": USER}
    return {**security, **written}


def pod_context(context: PlanContext) -> dict[str, Json]:
    """Return the pod-level context: fsGroup, which containers cannot set. Only the user's in serverless mode."""
    written = dict(context.choice.pod.get("securityContext") or {})
    if context.serverless or not context.choice.is_pilotlight:
        return written
    return {"runAsNonRoot": True, "fsGroup": USER, "seccompProfile": dict(SECCOMP), **written}
