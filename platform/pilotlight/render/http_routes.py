"""Routing of a service: selectors and ports, backends with weights, HTTPRoute, address in the cluster. Pure."""

from typing import Any, Final

from pilotlight.errors import InternalError
from pilotlight.k8s import names
from pilotlight.k8s.manifest import route_traffic
from pilotlight.plan.router import discovers_pods
from pilotlight.plan.types import Plan, Traffic, Workload

Json = Any
SERVICE_PORT: Final = 80
METRICS_PORT_NAME: Final = "metrics"
DOMAIN: Final = "svc.cluster.local"

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


def is_headless(plan: Plan, work: Workload) -> bool:
    """Return whether each pod has an address in DNS: of a StatefulSet, and for our router, which balances over pods."""
    routed = any(other.role == "router" and other.is_pilotlight for other in plan.workloads)
    behind = routed and work.role in ("engine", "decoder") and work.mode in ("raw", "multi-node")
    return work.mode == "stateful" or behind


def reads_pods(plan: Plan) -> bool:
    """Return whether a router of others, with the service's own account, finds its engines by the Kubernetes API."""
    specs = [work.template["spec"] for work in plan.workloads if work.role == "router" and not work.is_pilotlight]
    own = [spec for spec in specs if spec.get("serviceAccountName") == plan.service_account]
    return any(discovers_pods(spec["containers"][0]) for spec in own)


def peers_of(plan: Plan, work: Workload) -> list[dict[str, str]]:
    """Return selectors of the other components, which may call it: a router its engine, an engine its decoder."""
    return [selector_of(other) for other in plan.workloads if other.role != work.role and other.mode != "virtual"]


def ports_of(work: Workload) -> list[dict[str, Json]]:
    """Return the Service's ports: serving, other declared ones, metrics."""
    taken = {work.port: work.port_name}
    if work.metrics_port is not None:
        taken.setdefault(work.metrics_port, METRICS_PORT_NAME)
    serving, *metrics = taken
    containers = work.template.get("spec", {}).get("containers", [])
    ports = [_port(work.port_name, SERVICE_PORT, serving)]
    for declared in containers[0].get("ports", []) if containers else ():
        name, number = str(declared.get("name", "")), declared["containerPort"]
        if number not in taken:
            # A Service requires unique names, a container does not.
            unique = name if name and name not in taken.values() else f"port-{number}"
            ports.append(_port(unique, number, number))
    return [*ports, *(_port(METRICS_PORT_NAME, number, number) for number in metrics)]


def network_of(plan: Plan, work: Workload) -> Json:
    """Return what the NetworkPolicy admits: everybody, or the other components.

    Pods that cannot check the service's access annotations get finished rules, `ingress`: our gateway to the serving
    port, other components, pods of its own group, and Prometheus, by its namespace, to a port of the name `metrics`.
    """
    exposed = exposed_in(plan, work)
    network: dict[str, Json] = {"open": exposed, "peers": peers_of(plan, work)}
    if not plan.annotations or work.enforces_access or work.mode == "serverless":
        return network
    ports = {port["name"]: {"protocol": "TCP", "port": port["targetPort"]} for port in ports_of(work)}
    rules = []
    if exposed and plan.activator is not None:
        pods = {"app.kubernetes.io/component": "gateway", names.LABEL_GATEWAY: plan.activator.service}
        rules.append({"from": [_in_namespace(plan.activator.namespace, pods)], "ports": [ports[work.port_name]]})
    group = [selector_of(work)] if work.mode == "multi-node" else []
    if peers := [{"podSelector": {"matchLabels": labels}} for labels in (*peers_of(plan, work), *group)]:
        rules.append({"from": peers})
    if METRICS_PORT_NAME in ports:
        scrapers = {"from": [_in_namespace(plan.prometheus_namespace)]} if plan.prometheus_namespace else {}
        rules.append({**scrapers, "ports": [ports[METRICS_PORT_NAME]]})
    return {**network, "open": False, "ingress": rules}


def _in_namespace(namespace: str, pods: dict[str, str] | None = None) -> Json:
    peer: dict[str, Json] = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    return {**peer, "podSelector": {"matchLabels": pods}} if pods else peer


def metrics_port_name_of(work: Workload) -> str:
    return work.port_name if work.metrics_port == work.port else METRICS_PORT_NAME


def _port(name: str, port: int, target: int) -> dict[str, Json]:
    """Return a Service port; gateways use HTTP/2 upstream only with an appProtocol."""
    clear_text_http2 = {"appProtocol": "kubernetes.io/h2c"} if name in ("h2c", "grpc") else {}
    return {"name": name, "port": port, "targetPort": target, "protocol": "TCP", **clear_text_http2}


def entry_of(plan: Plan) -> Workload | None:
    """Return the workload that receives requests; a virtual service has none."""
    return next((work for work in plan.workloads if work.name == plan.entry and work.mode != "virtual"), None)


def backends_of(plan: Plan) -> list[tuple[Workload, int]]:
    """Return the entry and, during a raw canary, its other variant, each with its percent."""
    entry = entry_of(plan)
    if entry is None:
        return []
    if entry.mode == "serverless" or not entry.traffic:
        return [(entry, 100)]
    variants = {work.revision: work for work in plan.workloads if work.role == entry.role}
    backends = []
    for share in entry.traffic:
        variant = entry if share.latest else variants.get(share.revision)
        if variant is None:
            message = f"traffic goes to revision {share.revision}, which no workload of the plan has"
            raise InternalError(f"{entry.name}: {message}")
        backends.append((variant, share.percent))
    return backends


def exposed_in(plan: Plan, work: Workload) -> bool:
    """Return whether external requests reach a workload: the entry and its canary variant."""
    return not work.internal and (work.canary or work.name in {variant.name for variant, _ in backends_of(plan)})


def route_of(plan: Plan) -> Json:
    """Return the HTTPRoute; None for Knative, which has its own ingress."""
    entry = entry_of(plan)
    if entry is None or entry.mode == "serverless" or not plan.gateway:
        return None
    activator, grant, waiting = plan.activator, None, 0
    backends = [{"name": work.name, "port": SERVICE_PORT, "weight": share} for work, share in backends_of(plan)]
    if plan.endpoint_picker is not None:
        pool = {"group": "inference.networking.k8s.io", "kind": "InferencePool"}
        backends = [{**pool, "name": work.name, "weight": share} for work, share in backends_of(plan)]
    if activator is not None:
        waiting = entry.progress_deadline_seconds  # a request may wake the service
        backends = [{"name": activator.service, "port": activator.port, "weight": 100}]
        if activator.namespace != plan.namespace:
            backends[0] = {"namespace": activator.namespace, **backends[0]}
            name = names.truncate(f"{plan.namespace}-{plan.name}")
            grant = {"name": name, "namespace": activator.namespace, "service": activator.service}  # ReferenceGrant
    return {
        "name": names.route(plan.name),
        "parent": plan.gateway,
        "hosts": plan.hosts,
        "timeout": "" if entry.timeout_seconds is None else f"{entry.timeout_seconds + waiting}s",
        "backends": backends,
        "grant": grant,
    }


def address_of(plan: Plan) -> Json:
    """Return the Service that has the name of the InferenceService.

    With an activator it is an alias of that, so that requests from inside the cluster wake the service too.
    """
    entry = entry_of(plan)
    name = names.entry_service(plan.name)
    if entry is None or entry.mode == "serverless" or entry.name == name:
        return None
    if plan.activator is not None:
        ports = [{"name": "http", "port": plan.activator.port, "protocol": "TCP"}]
        host = f"{plan.activator.service}.{plan.activator.namespace}.{DOMAIN}"
        # Our gateway is the route's only backend, so it does the traffic split.
        shares = ",".join(f"{work.name}={share}" for work, share in backends_of(plan))
        split = {"annotations": {names.ANNOTATION_SHARES: shares}} if plan.activator.kind == "gateway" else {}
        return {"name": name, **split, "externalName": host, "ports": ports}
    port = ports_of(entry)[0]
    if plan.expose:  # on the port that clients of the container alone would use
        return {"name": name, "type": plan.expose, "selector": service_selector_of(entry),
                "ports": [{**port, "port": port["targetPort"]}]}  # fmt: skip
    return {"name": name, "selector": service_selector_of(entry), "ports": [port]}


def knative_route_of(plan: Plan) -> Json:
    """Return the Knative Route that answers at the service's own name in serverless mode, outside the cluster too."""
    entry = entry_of(plan)
    if entry is None or entry.mode != "serverless":
        return None
    traffic = route_traffic(traffic_of(entry), entry.name)
    return {"name": names.entry_service(plan.name), "labels": service_labels(plan, entry), "traffic": traffic}


def service_labels(plan: Plan, work: Workload) -> dict[str, str]:
    """Return the labels of a workload's Service. Knative leaves those that are cluster-local off the public gateway."""
    hidden = work.mode == "serverless" and not exposed_in(plan, work) and names.LABEL_VISIBILITY not in work.labels
    visibility = {names.LABEL_VISIBILITY: "cluster-local"} if hidden else {}
    return {**plan.labels, **work.labels, **names.selector(work.name), **visibility}


def traffic_of(work: Workload) -> list[dict[str, Json]]:
    """Return the traffic split for Knative; without a revision name all goes to the latest."""
    shares = work.traffic or (Traffic(work.revision, 100, latest=not work.revision),)
    return [
        {
            **({} if share.latest else {"revisionName": share.revision}),
            "latestRevision": share.latest,
            "percent": share.percent,
            **({"tag": share.tag} if share.tag else {}),
        }
        for share in (shares if work.mode == "serverless" else ())
    ]


def hosts_in_cluster(plan: Plan) -> list[str]:
    """Return the Host headers of requests to that address, which the activator must match too."""
    name = f"{names.entry_service(plan.name)}.{plan.namespace}"
    return [name, f"{name}.svc", f"{name}.{DOMAIN}"]
