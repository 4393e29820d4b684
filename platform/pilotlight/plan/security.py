"""How little a pod may do: Pod Security *restricted* for our image, the strictest that runs for anybody else's.

What the user wrote is never overridden. In serverless mode everything goes onto containers: a pod-level context needs
a Knative feature flag.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from pilotlight.plan.ledger import Ledger
from pilotlight.plan.subject import Subject

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


def decide_level(subject: Subject, volumes: list[Json], ledger: Ledger) -> Level:
    """The level that the pod fits, with a warning wherever it is not the strictest."""
    forced = subject.capabilities.pod_security
    role, path = subject.component.role, subject.path()
    if forced in LEVELS:
        ledger.decide(role, "pod security", forced, "--pod-security")
        return LEVELS[forced]
    beyond = list(_beyond_baseline(subject.choice.pod, subject.choice.container, volumes))
    if beyond:
        ledger.warn("PL350", path, f"{', '.join(beyond)} needs a namespace that admits privileged pods")
        return "privileged"
    if subject.choice.ours:
        ledger.decide(role, "pod security", "restricted", "our image needs nothing more")
        return "restricted"
    ledger.warn(
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
    context = container.get("securityContext") or {}
    if context.get("privileged"):
        yield "privileged: true"
    if (context.get("capabilities") or {}).get("add"):
        yield "added capabilities"


def container_context(level: Level, ours: bool, written: Mapping[str, Json]) -> dict[str, Json]:
    added = (written.get("capabilities") or {}).get("add")
    if not ours and (written.get("privileged") or added):
        return dict(written)
    context: dict[str, Json] = {"allowPrivilegeEscalation": False, "seccompProfile": dict(SECCOMP)}
    if level == "restricted" or ours:
        context |= {"capabilities": {"drop": ["ALL"]}, "runAsNonRoot": True}
    if ours:
        context |= {"readOnlyRootFilesystem": True, "runAsUser": USER, "runAsGroup": USER}
    return {**context, **written}


def pod_context(subject: Subject) -> dict[str, Json]:
    """Only what a container cannot say: the group that volumes belong to. Empty in serverless mode."""
    written = dict(subject.choice.pod.get("securityContext") or {})
    if subject.serverless or not subject.choice.ours:
        return written
    return {"runAsNonRoot": True, "fsGroup": USER, "seccompProfile": dict(SECCOMP), **written}
