"""Selectors and ports of a workload, for Services, NetworkPolicies and autoscalers. Pure."""

from collections.abc import Collection, Mapping
from typing import Any, Final

from pilotlight import names
from pilotlight.plan.model import Plan, Workload

Json = Any
SERVICE_PORT: Final = 80
METRICS_PORT_NAME: Final = "metrics"

# Scale target by mode; Knative scales its own.
SCALE_TARGETS: Final = {
    "raw": {"apiVersion": "apps/v1", "kind": "Deployment"},
    "stateful": {"apiVersion": "apps/v1", "kind": "StatefulSet"},
    "multi-node": {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet"},
}


def selector_of(work: Workload) -> dict[str, str]:
    """Return labels unique to the pods of a workload, either ours or those of its controller."""
    if work.selector:
        return dict(work.selector)
    if work.mode == "serverless":
        return {"serving.knative.dev/service": work.name}
    if work.mode == "multi-node" and work.cluster == "leader-worker-set":
        return {"leaderworkerset.sigs.k8s.io/name": work.name}
    return names.selector(work.name)


def service_selector_of(work: Workload) -> dict[str, str]:
    """Return labels of the pods that serve requests: of a multi-node group only the leader."""
    if work.mode != "multi-node":
        return selector_of(work)
    head = {"ray.io/node-type": "head"} if work.cluster == "ray" else {"leaderworkerset.sigs.k8s.io/worker-index": "0"}
    return {**selector_of(work), **head}


def peers_of(plan: Plan, work: Workload) -> list[dict[str, str]]:
    """Return selectors of the other components, which may call it: a router its engine, an engine its decoder."""
    return [selector_of(other) for other in plan.workloads if other.role != work.role and other.mode != "virtual"]


def ports_of(work: Workload) -> list[dict[str, Json]]:
    """Return the Service's ports: serving, other declared ones, metrics."""
    taken = {work.port: work.port_name}
    if work.metrics_port is not None:
        taken.setdefault(work.metrics_port, METRICS_PORT_NAME)
    serving, *metrics = taken
    others = [port for port in _declared(work) if port["containerPort"] not in taken]
    return [
        _port(work.port_name, SERVICE_PORT, serving),
        *(_port(_unique_name(port, taken.values()), port["containerPort"], port["containerPort"]) for port in others),
        *(_port(METRICS_PORT_NAME, number, number) for number in metrics),
    ]


def metrics_port_name_of(work: Workload) -> str:
    return work.port_name if work.metrics_port == work.port else METRICS_PORT_NAME


def _unique_name(port: Mapping[str, Json], taken: Collection[str]) -> str:
    """Return a unique port name, which a Service requires and a container does not."""
    name = str(port.get("name", ""))
    return name if name and name not in taken else f"port-{port['containerPort']}"


def _port(name: str, port: int, target: int) -> dict[str, Json]:
    """Return a Service port; gateways use HTTP/2 upstream only with an appProtocol."""
    clear_text_http2 = {"appProtocol": "kubernetes.io/h2c"} if name in ("h2c", "grpc") else {}
    return {"name": name, "port": port, "targetPort": target, "protocol": "TCP", **clear_text_http2}


def _declared(work: Workload) -> list[dict[str, Json]]:
    containers = work.template.get("spec", {}).get("containers", [])
    return list(containers[0].get("ports", [])) if containers else []
