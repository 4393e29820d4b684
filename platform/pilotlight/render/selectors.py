"""Which pods are a workload's own, and on which ports they listen: for Services, policies and scalers. Pure."""

from collections.abc import Collection, Mapping
from typing import Any, Final

from pilotlight import names
from pilotlight.plan.model import Plan, Workload

Json = Any
SERVICE_PORT: Final = 80
METRICS_PORT_NAME: Final = "metrics"

# What an autoscaler scales, by mode; Knative scales its own.
SCALE_TARGETS: Final = {
    "raw": {"apiVersion": "apps/v1", "kind": "Deployment"},
    "stateful": {"apiVersion": "apps/v1", "kind": "StatefulSet"},
    "multi-node": {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet"},
}


def selector_of(work: Workload) -> dict[str, str]:
    """Labels that all pods of the workload have and no others, either ours or those that its controller sets."""
    if work.selector:
        return dict(work.selector)
    if work.mode == "serverless":
        return {"serving.knative.dev/service": work.name}
    if work.mode == "multi-node" and work.cluster == "leader-worker-set":
        return {"leaderworkerset.sigs.k8s.io/name": work.name}
    return names.selector(work.name)


def service_selector_of(work: Workload) -> dict[str, str]:
    """The pods that answer requests: of a multi-node group only the leader does."""
    if work.mode != "multi-node":
        return selector_of(work)
    head = {"ray.io/node-type": "head"} if work.cluster == "ray" else {"leaderworkerset.sigs.k8s.io/worker-index": "0"}
    return {**selector_of(work), **head}


def peers_of(plan: Plan, work: Workload) -> list[dict[str, str]]:
    """The other components of the service: a router calls its engine, an engine hands its cache to the decoder."""
    return [selector_of(other) for other in plan.workloads if other.role != work.role and other.mode != "virtual"]


def ports_of(work: Workload) -> list[dict[str, Json]]:
    """The serving port first, then what else the container declares, then metrics."""
    taken = {work.port: work.port_name}
    if work.metrics_port is not None:
        taken.setdefault(work.metrics_port, METRICS_PORT_NAME)
    serving, *metrics = taken
    others = [port for port in _declared(work) if port["containerPort"] not in taken]
    return [
        _port(work.port_name, SERVICE_PORT, serving),
        *(_port(_free_name(port, taken.values()), port["containerPort"], port["containerPort"]) for port in others),
        *(_port(METRICS_PORT_NAME, number, number) for number in metrics),
    ]


def metrics_port_name_of(work: Workload) -> str:
    return work.port_name if work.metrics_port == work.port else METRICS_PORT_NAME


def _free_name(port: Mapping[str, Json], taken: Collection[str]) -> str:
    """A Service's ports need names, and different ones; a container's do not."""
    name = str(port.get("name", ""))
    return name if name and name not in taken else f"port-{port['containerPort']}"


def _port(name: str, port: int, target: int) -> dict[str, Json]:
    """Gateways speak HTTP/2 to a backend only when its Service says so."""
    clear_text_http2 = {"appProtocol": "kubernetes.io/h2c"} if name in ("h2c", "grpc") else {}
    return {"name": name, "port": port, "targetPort": target, "protocol": "TCP", **clear_text_http2}


def _declared(work: Workload) -> list[dict[str, Json]]:
    containers = work.template.get("spec", {}).get("containers", [])
    return list(containers[0].get("ports", [])) if containers else []
