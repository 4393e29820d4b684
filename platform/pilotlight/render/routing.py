"""Where a service's requests go: the shares of its entry, its HTTPRoute, its address in the cluster. Pure."""

from typing import Any, Final

from pilotlight import names
from pilotlight.errors import InternalError
from pilotlight.plan.model import Plan, Workload
from pilotlight.render.selectors import SERVICE_PORT, ports_of, service_selector_of

Json = Any
DOMAIN: Final = "svc.cluster.local"


def entry_of(plan: Plan) -> Workload | None:
    """The workload that receives requests; a virtual service has none."""
    return next((work for work in plan.workloads if work.name == plan.entry and work.mode != "virtual"), None)


def backends_of(plan: Plan) -> list[tuple[Workload, int]]:
    """The entry and, during a canary of Deployments, its other side, each with its share in percent."""
    entry = entry_of(plan)
    if entry is None:
        return []
    if entry.mode == "serverless" or not entry.traffic:
        return [(entry, 100)]
    sides = {work.revision: work for work in plan.workloads if work.role == entry.role}
    return [(_side(entry, sides, share.revision, share.latest), share.percent) for share in entry.traffic]


def exposed_in(plan: Plan, work: Workload) -> bool:
    """Do requests from outside reach it? They reach the entry and the other side of its canary."""
    return not work.internal and (work.canary or work.name in {side.name for side, _ in backends_of(plan)})


def _side(entry: Workload, sides: dict[str, Workload], revision: str, latest: bool) -> Workload:
    if latest:
        return entry
    if revision not in sides:
        raise InternalError(f"{entry.name}: traffic goes to revision {revision}, which no workload of the plan runs")
    return sides[revision]


def route_of(plan: Plan) -> Json:
    """The HTTPRoute of everything but Knative, which brings its own ingress."""
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
    if plan.front is not None:
        return [{**_namespaced(plan), "name": plan.front.service, "port": plan.front.port, "weight": 100}]
    return [{"name": work.name, "port": SERVICE_PORT, "weight": share} for work, share in backends_of(plan)]


def _namespaced(plan: Plan) -> dict[str, str]:
    crosses = plan.front is not None and plan.front.namespace != plan.namespace
    return {"namespace": plan.front.namespace} if plan.front is not None and crosses else {}


def _grant(plan: Plan) -> Json:
    """Gateway API lets a route leave its namespace only with the consent of the other one."""
    if plan.front is None or plan.front.namespace == plan.namespace:
        return None
    name = names.fit(f"{plan.namespace}-{plan.name}")
    return {"name": name, "namespace": plan.front.namespace, "service": plan.front.service}


def _timeout(plan: Plan, entry: Workload) -> str:
    """A request that wakes the service waits for its start as well."""
    if entry.timeout_seconds is None:
        return ""
    waiting = entry.progress_deadline_seconds if plan.front is not None else 0
    return f"{entry.timeout_seconds + waiting}s"


def address_of(plan: Plan) -> Json:
    """The Service that carries the service's own name, whatever its entry is called.

    With something in front it is an alias of that, so that a call from inside the cluster wakes the service too.
    """
    entry = entry_of(plan)
    name = names.entry_service(plan.name)
    if entry is None or entry.mode == "serverless" or entry.name == name:
        return None
    if plan.front is not None:
        ports = [{"name": "http", "port": plan.front.port, "protocol": "TCP"}]
        host = f"{plan.front.service}.{plan.front.namespace}.{DOMAIN}"
        return {"name": name, **_shares(plan), "externalName": host, "ports": ports}
    return {"name": name, "selector": service_selector_of(entry), "ports": ports_of(entry)[:1]}


def _shares(plan: Plan) -> dict[str, Json]:
    """Our gateway makes the split itself: no other object says who gets how much, since the route leads to it alone."""
    if plan.front is None or plan.front.kind != "gateway":
        return {}
    shares = ",".join(f"{work.name}={share}" for work, share in backends_of(plan))
    return {"annotations": {names.ANNOTATION_SHARES: shares}}


def hosts_in_cluster(plan: Plan) -> list[str]:
    """The Host headers of calls to that address: whoever holds requests must know them as well as the public ones."""
    name = f"{names.entry_service(plan.name)}.{plan.namespace}"
    return [name, f"{name}.svc", f"{name}.{DOMAIN}"]
