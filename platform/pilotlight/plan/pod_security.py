"""Security contexts (Pod Security *restricted* for our image, *baseline* for others) and Knative's limits on pods.

The user's settings win. In serverless mode everything is set on containers: a pod-level context needs a Knative feature
flag. Fields that Knative's webhook rejects, and that have no flag, are removed, each with a warning.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from pilotlight.k8s.knative_features import KNATIVE_POD_FIELDS
from pilotlight.plan.component_context import PlanContext
from pilotlight.plan.types import DecisionLog, Requirement

Json = Any
Level = Literal["restricted", "baseline", "privileged"]
LEVELS: Final[dict[str, Level]] = {"restricted": "restricted", "baseline": "baseline", "privileged": "privileged"}
USER: Final = 65532
SECCOMP: Final = {"type": "RuntimeDefault"}
# Of a container runtime's defaults, those that no server needs. One that starts as root may need the others: to change
# its user (SETUID, SETGID), to read and own files of volumes. Not ALL with `add`, for which Knative wants a flag.
NEEDLESS_CAPABILITIES: Final = ("AUDIT_WRITE", "MKNOD", "NET_RAW", "SETFCAP", "SETPCAP", "SYS_CHROOT")
_FORBIDDEN_AT_BASELINE: Final = ("hostPath",)
_HOST_FIELDS: Final = ("hostNetwork", "hostPID", "hostIPC")
REFUSED_IN_CONTAINERS: Final = frozenset(
    ("lifecycle", "stdin", "stdinOnce", "tty", "volumeDevices", "resizePolicy", "restartPolicy")
)
REFUSED_IN_CONTEXTS: Final = frozenset(("seLinuxOptions", "procMount", "windowsOptions", "appArmorProfile"))
# Knative's fast probing (no periodSeconds) rejects thresholds.
QUICK_PROBE_LEAVES_OUT: Final = frozenset(("periodSeconds", "failureThreshold", "timeoutSeconds"))


def decide_level(context: PlanContext, volumes: list[Json], log: DecisionLog) -> Level:
    """Return the Pod Security level that the pod meets; warn if it is not restricted, where there are pods."""
    forced = context.capabilities.pod_security
    role, path = context.component.role, context.path()
    has_pods = context.capabilities.is_cluster
    if forced in LEVELS:
        log.decide(role, "pod security", forced, "--pod-security")
        return LEVELS[forced]
    beyond = list(_beyond_baseline(context.choice.pod, context.choice.container, []))
    if beyond and has_pods:
        log.warn("PL350", path, f"{', '.join(beyond)} needs a namespace that admits privileged pods")
    node_folders = list(_beyond_baseline({}, {}, volumes))  # of the model agent: every OME model on nodes has one
    if node_folders and has_pods:
        log.require(Requirement("feature", "a namespace that admits privileged pods", f"{role}: {node_folders[0]}"))
    if beyond or node_folders:
        return "privileged"
    if context.choice.is_pilotlight:
        log.decide(role, "pod security", "restricted", "the predictor image needs nothing more")
        return "restricted"
    message = "a third-party image may need root, so its pods meet only baseline"
    if has_pods:
        log.warn("PL351", path, f"{message}; force --pod-security restricted if it does not")
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
    else:
        security |= {"capabilities": {"drop": list(NEEDLESS_CAPABILITIES)}}
    if ours:
        security |= {"readOnlyRootFilesystem": True, "runAsUser": USER, "runAsGroup": USER}
    return {**security, **written}


def pod_context(context: PlanContext) -> dict[str, Json]:
    """Return the pod-level context: fsGroup, which containers cannot set. Only the user's in serverless mode."""
    written = dict(context.choice.pod.get("securityContext") or {})
    if context.serverless or not context.choice.is_pilotlight:
        return written
    return {"runAsNonRoot": True, "fsGroup": USER, "seccompProfile": dict(SECCOMP), **written}


def fit_to_knative(
    context: PlanContext, spec: Mapping[str, Json], port: Mapping[str, Json], log: DecisionLog
) -> dict[str, Json]:
    """Return the pod spec without fields that a Knative Service cannot have. `port` is its one serving port."""
    refused = [field for field in spec if field not in KNATIVE_POD_FIELDS]
    if spec.get("automountServiceAccountToken"):
        refused.append("automountServiceAccountToken")
    for field in refused:
        log.warn("PL359", context.path(field), "is rejected by Knative and removed; use raw if it is needed")
    allowed = {field: value for field, value in spec.items() if field not in refused}
    containers = [_container(context, container, log) for container in spec["containers"]]
    return {**allowed, "containers": _with_one_port(context, containers, port, log)}


def _with_one_port(
    context: PlanContext, containers: list[dict[str, Json]], port: Mapping[str, Json], log: DecisionLog
) -> list[dict[str, Json]]:
    """Give the first container with ports the serving port; Knative rejects ports of any other."""
    serving, *others = (container for container in containers if container.get("ports"))
    for container in others:
        message = f"ports of {container['name']} are rejected by Knative next to those of {serving['name']} and removed"
        log.warn("PL359", context.path("containers"), message)
        del container["ports"]
    serving["ports"] = [dict(port)]
    return containers


def _container(context: PlanContext, container: Mapping[str, Json], log: DecisionLog) -> dict[str, Json]:
    security = container.get("securityContext") or {}
    refused = [field for field in container if field in REFUSED_IN_CONTAINERS]
    refused_security = [
        field for field, value in security.items() if field in REFUSED_IN_CONTEXTS or (field == "privileged" and value)
    ]
    for field in (*refused, *(f"securityContext.{name}" for name in refused_security)):
        field_path = "runner" if context.service.group == "ome" else "containers"
        message = f"{field} of {container['name']} is rejected by Knative and removed; use raw if it is needed"
        log.warn("PL359", context.path(field_path), message)
    allowed = {field: value for field, value in container.items() if field not in refused}
    if refused_security:
        allowed["securityContext"] = {key: value for key, value in security.items() if key not in refused_security}
    return allowed


def without_timing(probe: Mapping[str, Json]) -> dict[str, Json]:
    return {field: value for field, value in probe.items() if field not in QUICK_PROBE_LEAVES_OUT}
