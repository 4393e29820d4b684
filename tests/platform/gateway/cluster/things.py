"""Objects of a cluster, as `platformctl render` writes them and as Kubernetes adds to them."""

from typing import Any

Json = dict[str, Any]
GATEWAY = "pilotlight-gateway.pilotlight-system.svc.cluster.local"
BY_CONTROLLER = {"endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"}


def labels(service: str) -> dict[str, str]:
    return {"pilotlight.dev/service": service}


def address(service: str, shares: str, namespace: str = "models", leads_to: str = GATEWAY) -> Json:
    metadata = {
        "name": service, "namespace": namespace, "labels": labels(service),
        "annotations": {"pilotlight.dev/shares": shares},
    }  # fmt: skip
    return {"metadata": metadata, "spec": {"type": "ExternalName", "externalName": leads_to}}


def straight(service: str, workload: str, namespace: str = "models", name: str = "") -> Json:
    """The address of a service that never is at zero."""
    metadata = {"name": name or service, "namespace": namespace, "labels": labels(service)}
    return {"metadata": metadata, "spec": {"type": "ClusterIP", "selector": {"pilotlight.dev/workload": workload}}}


def deployment(
    service: str, name: str, namespace: str = "models", revision: str = "", timeout: str = "60", deadline: int = 900,
    **annotations: str,
) -> Json:  # fmt: skip
    template = {
        "metadata": {"labels": {"pilotlight.dev/revision": revision or f"{name}-1"}},
        "spec": {"containers": [{"env": [{"name": "INFERENCE_EXIT_TIMEOUT_SECS", "value": timeout}]}]},
    }
    keys = {f"pilotlight.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    metadata = {"name": name, "namespace": namespace, "labels": labels(service), "annotations": keys}
    return {"metadata": metadata, "spec": {"progressDeadlineSeconds": deadline, "template": template}}


def route(
    service: str, *hosts: str, namespace: str = "models", since: str = "2026-01-01T00:00:00Z",
    to: tuple[tuple[str, int], ...] = (("pilotlight-gateway", 100),), accepted: str = "True", timeout: str = "1000s",
    by: str = "public",
) -> Json:  # fmt: skip
    metadata = {"name": service, "namespace": namespace, "labels": labels(service), "creationTimestamp": since}
    backends = [{"name": name, "port": 80, "weight": weight} for name, weight in to]
    rules = [{"timeouts": {"request": timeout}, "backendRefs": backends}]
    condition = {"type": "Accepted", "status": accepted}
    status = {"parents": [{"parentRef": {"name": by}, "conditions": [condition]}]} if accepted else {}
    spec = {"parentRefs": [{"name": "public", "kind": "Gateway"}], "hostnames": list(hosts), "rules": rules}
    return {"metadata": metadata, "spec": spec, "status": status}


def endpoint(host: str, pod: str = "", ready: bool = True, terminating: bool = False) -> Json:
    conditions = {"ready": ready, "serving": ready or terminating, "terminating": terminating}
    return {"addresses": [host], "conditions": conditions, "targetRef": {"kind": "Pod", "name": pod or f"pod-{host}"}}


def slice_of(
    service: str, workload: str, *endpoints: Json, namespace: str = "models", port: int = 8080, name: str = ""
) -> Json:
    metadata = {
        "name": name or f"{workload}-x", "namespace": namespace,
        "labels": {**labels(service), "kubernetes.io/service-name": workload, **BY_CONTROLLER},
    }  # fmt: skip
    ports = [{"name": "metrics", "port": 8082}, {"name": "http1", "port": port}, {"name": "grpc", "port": 8081}]
    return {"addressType": "IPv4", "metadata": metadata, "ports": ports, "endpoints": list(endpoints)}


def knative_route(service: str, url: str, *tags: tuple[str, str], namespace: str = "models", name: str = "") -> Json:
    """The Knative Route of a service, with the tag and revision of each target."""
    labels_ = {**labels(service), "pilotlight.dev/workload": f"{service}-predictor"}
    traffic = [{"revisionName": revision, **({"tag": tag} if tag else {})} for tag, revision in tags]
    status = {"address": {"url": url}, "traffic": traffic} if url else {}
    return {"metadata": {"name": name or service, "namespace": namespace, "labels": labels_}, "status": status}
