"""Routing of a service: backends with weights, HTTPRoute, address in the cluster. Pure."""

from typing import Any, Final

from pilotlight import names
from pilotlight.errors import InternalError
from pilotlight.plan.model import Plan, Workload
from pilotlight.render.selectors import SERVICE_PORT, ports_of, service_selector_of

Json = Any
DOMAIN: Final = "svc.cluster.local"


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
    return [(_variant(entry, variants, share.revision, share.latest), share.percent) for share in entry.traffic]


def exposed_in(plan: Plan, work: Workload) -> bool:
    """Return whether external requests reach a workload: the entry and its canary variant."""
    return not work.internal and (work.canary or work.name in {variant.name for variant, _ in backends_of(plan)})


def _variant(entry: Workload, variants: dict[str, Workload], revision: str, latest: bool) -> Workload:
    if latest:
        return entry
    if revision not in variants:
        raise InternalError(f"{entry.name}: traffic goes to revision {revision}, which no workload of the plan runs")
    return variants[revision]


def route_of(plan: Plan) -> Json:
    """Return the HTTPRoute; None for Knative, which has its own ingress."""
    entry = entry_of(plan)
    if entry is None or entry.mode == "serverless" or not plan.gateway:
        return None
    return {
        "name": names.route(plan.name),
        "parent": plan.gateway,
        "hosts": plan.hosts,
        "timeout": _timeout(plan, entry),
        "backends": _backends(plan),
        "grant": _grant(plan),
    }


def _backends(plan: Plan) -> list[dict[str, Json]]:
    if plan.activator is not None:
        return [{**_namespaced(plan), "name": plan.activator.service, "port": plan.activator.port, "weight": 100}]
    return [{"name": work.name, "port": SERVICE_PORT, "weight": share} for work, share in backends_of(plan)]


def _namespaced(plan: Plan) -> dict[str, str]:
    crosses = plan.activator is not None and plan.activator.namespace != plan.namespace
    return {"namespace": plan.activator.namespace} if plan.activator is not None and crosses else {}


def _grant(plan: Plan) -> Json:
    """Return the ReferenceGrant that a route to another namespace needs."""
    if plan.activator is None or plan.activator.namespace == plan.namespace:
        return None
    name = names.truncate(f"{plan.namespace}-{plan.name}")
    return {"name": name, "namespace": plan.activator.namespace, "service": plan.activator.service}


def _timeout(plan: Plan, entry: Workload) -> str:
    """Return the route's timeout, with the start of the service if a request may wake it."""
    if entry.timeout_seconds is None:
        return ""
    waiting = entry.progress_deadline_seconds if plan.activator is not None else 0
    return f"{entry.timeout_seconds + waiting}s"


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
        return {"name": name, **_shares(plan), "externalName": host, "ports": ports}
    return {"name": name, "selector": service_selector_of(entry), "ports": ports_of(entry)[:1]}


def _shares(plan: Plan) -> dict[str, Json]:
    """Return the annotation with the traffic split for our gateway, which is the route's only backend."""
    if plan.activator is None or plan.activator.kind != "gateway":
        return {}
    shares = ",".join(f"{work.name}={share}" for work, share in backends_of(plan))
    return {"annotations": {names.ANNOTATION_SHARES: shares}}


def hosts_in_cluster(plan: Plan) -> list[str]:
    """Return the Host headers of requests to that address, which the activator must match too."""
    name = f"{names.entry_service(plan.name)}.{plan.namespace}"
    return [name, f"{name}.svc", f"{name}.{DOMAIN}"]
