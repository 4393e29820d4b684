"""Removal of pod fields that Knative's webhook rejects, each with a warning.

Fields behind a feature flag stay and become requirements; these have no flag, or allow only one value.
"""

from collections.abc import Mapping
from typing import Any, Final

from pilotlight.plan.ledger import DecisionLog
from pilotlight.plan.subject import PlanContext
from pilotlight.pod_flags import KNATIVE_POD_FIELDS

Json = Any
REFUSED_IN_CONTAINERS: Final = frozenset(
    ("lifecycle", "stdin", "stdinOnce", "tty", "volumeDevices", "resizePolicy", "restartPolicy")
)
REFUSED_IN_CONTEXTS: Final = frozenset(("seLinuxOptions", "procMount", "windowsOptions", "appArmorProfile"))
# Knative's fast probing (no periodSeconds) rejects thresholds.
QUICK_PROBE_LEAVES_OUT: Final = frozenset(("periodSeconds", "failureThreshold", "timeoutSeconds"))


def fit_to_knative(
    context: PlanContext, spec: Mapping[str, Json], port: Mapping[str, Json], log: DecisionLog
) -> dict[str, Json]:
    """Return the pod spec without fields that a Knative Service cannot have. `port` is its one serving port."""
    refused = [field for field in spec if field not in KNATIVE_POD_FIELDS]
    if spec.get("automountServiceAccountToken"):
        refused.append("automountServiceAccountToken")
    for field in refused:
        log.warn("PL359", context.path(field), "is refused by Knative and left out; use raw if it is needed")
    allowed = {field: value for field, value in spec.items() if field not in refused}
    containers = [_container(context, container, log) for container in spec["containers"]]
    return {**allowed, "containers": _with_one_port(context, containers, port, log)}


def _with_one_port(
    context: PlanContext, containers: list[dict[str, Json]], port: Mapping[str, Json], log: DecisionLog
) -> list[dict[str, Json]]:
    """Give the first container with ports the serving port; Knative rejects ports of any other."""
    serving, *others = (container for container in containers if container.get("ports"))
    for container in others:
        message = f"ports of {container['name']} are refused by Knative beside {serving['name']}'s and left out"
        log.warn("PL359", context.path("containers"), message)
        del container["ports"]
    serving["ports"] = [dict(port)]
    return containers


def _container(context: PlanContext, container: Mapping[str, Json], log: DecisionLog) -> dict[str, Json]:
    security = container.get("securityContext") or {}
    refused = [field for field in container if field in REFUSED_IN_CONTAINERS]
    refused_security = [
        field for field in security if field in REFUSED_IN_CONTEXTS or (field, security[field]) == _PRIVILEGED
    ]
    for field in (*refused, *(f"securityContext.{name}" for name in refused_security)):
        field_path = "runner" if context.service.group == "ome" else "containers"
        message = f"{field} of {container['name']} is refused by Knative and left out; use raw if it is needed"
        log.warn("PL359", context.path(field_path), message)
    allowed = {field: value for field, value in container.items() if field not in refused}
    if refused_security:
        allowed["securityContext"] = {key: value for key, value in security.items() if key not in refused_security}
    return allowed


_PRIVILEGED: Final = ("privileged", True)


def without_timing(probe: Mapping[str, Json]) -> dict[str, Json]:
    return {field: value for field, value in probe.items() if field not in QUICK_PROBE_LEAVES_OUT}
