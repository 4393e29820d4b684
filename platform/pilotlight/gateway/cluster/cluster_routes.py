"""Cluster objects that the gateway watches, and the routing table built from them after every change.

A service is routed once its workloads are known, since they have its access rules. Rules that cannot be parsed close
the route instead of opening it.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import msgspec

from pilotlight.gateway.cluster import object_fields
from pilotlight.gateway.cluster.kube_api import Informer, KubeApi, WatchedKind
from pilotlight.gateway.cluster.object_fields import (
    EndpointSlice,
    EntryService,
    KnativeRoute,
    RouteHosts,
    Shares,
    Workload,
)
from pilotlight.gateway.cluster.settings import ClusterSettings
from pilotlight.gateway.routing_table import Backend, Replica, Route
from pilotlight.k8s import access_annotations, names

ObjectKey = tuple[str, str]  # namespace and name
TIMEOUT_S: Final = 300.0
DOMAIN: Final = "svc.cluster.local"
SLICES: Final = "/apis/discovery.k8s.io/v1/endpointslices"
SERVICES: Final = "/api/v1/services"
ROUTES: Final = "/apis/gateway.networking.k8s.io/v1/httproutes"
LEADER_WORKER_SETS: Final = "/apis/leaderworkerset.x-k8s.io/v1/leaderworkersets"
KNATIVE_SERVICES: Final = "/apis/serving.knative.dev/v1/services"
KNATIVE_ROUTES: Final = "/apis/serving.knative.dev/v1/routes"
ADDED_KINDS: Final = (LEADER_WORKER_SETS, KNATIVE_SERVICES)  # that a cluster may lack
WORKLOADS: Final = ("/apis/apps/v1/deployments", "/apis/apps/v1/statefulsets", *ADDED_KINDS)


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The watched objects of a cluster, by namespace and name."""

    entry_services: Mapping[ObjectKey, EntryService] = field(default_factory=dict)
    workloads: Mapping[ObjectKey, Workload] = field(default_factory=dict)
    hosts: Mapping[ObjectKey, RouteHosts] = field(default_factory=dict)
    slices: Mapping[ObjectKey, EndpointSlice] = field(default_factory=dict)
    knative_routes: Mapping[ObjectKey, KnativeRoute] = field(default_factory=dict)


class ClusterState:
    """`changed` is called after every relevant change."""

    def __init__(self, api: KubeApi, settings: ClusterSettings, changed: Callable[[], None]) -> None:
        ours = f"{settings.service}.{settings.namespace}"
        peers = f"/apis/discovery.k8s.io/v1/namespaces/{settings.namespace}/endpointslices"
        peer_selector = f"{object_fields.SERVICE_NAME}={settings.peers}"
        select = object_fields.SELECTOR
        self.services = Informer(
            api, WatchedKind(SERVICES, select, partial(object_fields.entry_service, gateway=ours)), changed
        )
        self.slices = Informer(api, WatchedKind(SLICES, select, object_fields.slice_of), changed)
        self.hosts = Informer(api, WatchedKind(ROUTES, select, object_fields.route_hosts, optional=True), changed)
        kinds = [WatchedKind(path, select, object_fields.workload, optional=path in ADDED_KINDS) for path in WORKLOADS]
        self.workloads = [Informer(api, kind, changed) for kind in kinds]
        knative = WatchedKind(KNATIVE_ROUTES, select, object_fields.knative_route, optional=True)
        self.knative_routes = Informer(api, knative, changed)
        self.peers = Informer(api, WatchedKind(peers, peer_selector, object_fields.pod_addresses), changed)

    @property
    def informers(self) -> Sequence[Informer[Any]]:
        return self.services, self.slices, self.hosts, *self.workloads, self.knative_routes, self.peers

    @property
    def unsynced(self) -> list[str]:
        """Paths of the kinds that are not listed yet."""
        return [each.kind.path for each in self.informers if not each.synced]

    def workloads_by_key(self) -> dict[ObjectKey, Workload]:
        return {key: workload for informer in self.workloads for key, workload in informer.objects.items()}

    def routes(self) -> tuple[Route, ...]:
        workloads, knative = self.workloads_by_key(), self.knative_routes.objects
        return routes(ClusterView(self.services.objects, workloads, self.hosts.objects, self.slices.objects, knative))

    def pods(self) -> set[str]:
        return {address for addresses in self.peers.objects.values() for address in addresses}


def routes(view: ClusterView) -> tuple[Route, ...]:
    """Return the routes in a fixed order, so that equal views give equal tables."""
    replicas, hosts = _replicas(view), _hosts(view)
    shared = {key: _shares(view, key, entry) for key, entry in _services(view).items()}
    return tuple(
        _route(view, key, shares, _backends(view, key[0], shares, replicas), tuple(hosts.get(key, ())))
        for key, shares in shared.items()
        if _workloads_known(view, key[0], shares)
    ) + tuple(_knative_routes(view, shared))


def _knative_routes(view: ClusterView, others: Collection[ObjectKey]) -> Iterator[Route]:
    """Yield the routes of serverless services: requests go to Knative's own ingress, which wakes and scales them."""
    for (namespace, _), found in sorted(view.knative_routes.items()):
        key, shares = (namespace, found.service), ((found.workload, 100),)
        if key not in others and _workloads_known(view, namespace, shares):
            workload = view.workloads[namespace, found.workload]
            route = _route(view, key, shares, _knative_backends(found, workload.deadline_s), ())
            # Knative holds a request while the service starts.
            yield msgspec.structs.replace(route, timeout_s=route.timeout_s + workload.deadline_s)


def _knative_backends(route: KnativeRoute, hold_s: float) -> tuple[Backend, ...]:
    if not route.authority:
        problem = f"{route.service} is reachable by TLS only in this cluster; call its own address"
        return (Backend(route.workload, route.workload, 100, unavailable=problem),)
    names_of = [("", route.workload), *((tag, tag) for tag, _ in route.tags if tag)]
    revisions = dict(route.tags)
    return tuple(
        Backend(
            name, route.workload, 0 if tag else 100, _ingress(f"{tag}-{route.authority}" if tag else route.authority),
            tuple(filter(None, [revisions.get(tag)])), hold_s=hold_s,
        )
        for tag, name in names_of
    )  # fmt: skip


def _ingress(authority: str) -> tuple[Replica, ...]:
    host, _, port = authority.partition(":")
    return (Replica(authority, int(port or 80), host, authority=authority),)


def _shares(view: ClusterView, key: ObjectKey, entry: EntryService) -> Shares:
    """Return the shares of an HTTPRoute that leads to workloads directly (a canary), else those of the Service."""
    route = view.hosts.get((key[0], names.route(key[1])))
    if entry.direct and route is not None and route.shares and _workloads_known(view, key[0], route.shares):
        return route.shares
    return entry.shares


def _workloads_known(view: ClusterView, namespace: str, shares: Shares) -> bool:
    return all((namespace, name) in view.workloads for name, _ in shares)


def _services(view: ClusterView) -> dict[ObjectKey, EntryService]:
    """Return entries by namespace and name of the service; of two objects for one service the first by name."""
    services: dict[ObjectKey, EntryService] = {}
    for (namespace, _), entry in sorted(view.entry_services.items()):
        services.setdefault((namespace, entry.service), entry)
    return services


def _route(
    view: ClusterView, key: ObjectKey, shares: Shares, backends: tuple[Backend, ...], hosts: tuple[str, ...]
) -> Route:
    """Return the route, closed if its annotations cannot be parsed: routes of other tenants must not fail with it."""
    variants = {name: view.workloads[key[0], name] for name, _ in shares}
    rules: dict[str, str] = {}  # of the first workload, completed by those of the others, so that all are checked
    for workload in variants.values():
        rules = {**workload.access, **rules}
    try:
        access_annotations.check(rules)
        access, rate = access_annotations.access(rules), access_annotations.rate(rules)
        quota = access_annotations.quota(rules)
    except Exception:  # whatever error of a parser
        problem = f"{key[1]} rejects all requests: the access annotations of its workload cannot be read"
        return Route(*key, (Backend("none", "none", 100, unavailable=problem),), hosts)
    models = next((each.models for each in variants.values() if each.models), ())
    timeout_s = _timeout(view, key, variants)
    adapters = next((each.adapters for each in variants.values() if each.adapters), ())
    return Route(
        *key, backends, hosts, timeout_s=timeout_s, access=access, rate=rate, quota=quota, models=models,
        adapters=adapters,
    )  # fmt: skip


def _backends(
    view: ClusterView, namespace: str, shares: Shares, replicas: Mapping[ObjectKey, tuple[Replica, ...]]
) -> tuple[Backend, ...]:
    # A backend has the name of its workload: during a rolling update pods of two revisions share one queue. Requests
    # are held as long as a start may take; the timeout of the HTTPRoute includes that time.
    variants = {name: view.workloads[namespace, name] for name, _ in shares}
    return tuple(
        Backend(
            name, name, share, replicas.get((namespace, name), ()), tuple(filter(None, [variants[name].revision])),
            hold_s=variants[name].deadline_s,
        )
        for name, share in shares
    )  # fmt: skip


def _timeout(view: ClusterView, key: ObjectKey, variants: Mapping[str, Workload]) -> float:
    """Return the workload's own timeout, else the HTTPRoute's without the time of a start."""
    own = max((workload.timeout_s for workload in variants.values()), default=0.0)
    deadline = max((workload.deadline_s for workload in variants.values()), default=0.0)
    route = view.hosts.get((key[0], names.route(key[1])))
    left = route.timeout_s - deadline if route is not None else 0.0
    return own or (left if left > 0 else TIMEOUT_S)


def _hosts(view: ClusterView) -> dict[ObjectKey, list[str]]:
    """Return hosts by owner: cluster-internal names belong to their service, others to the oldest route."""
    claimed: dict[str, ObjectKey] = {}
    for namespace, service in sorted(_services(view)):
        name = f"{names.entry_service(service)}.{namespace}"
        for host in (name, f"{name}.svc", f"{name}.{DOMAIN}"):
            claimed.setdefault(host, (namespace, service))
    for (namespace, _), route in sorted(view.hosts.items(), key=lambda each: (each[1].since, each[0])):
        for host in route.hosts:
            claimed.setdefault(host, (namespace, route.service))
    hosts: dict[ObjectKey, list[str]] = {}
    for host, owner in claimed.items():
        hosts.setdefault(owner, []).append(host)
    return hosts


def _replicas(view: ClusterView) -> dict[ObjectKey, tuple[Replica, ...]]:
    """Return replicas by namespace and Service; a pod with IPv4 and IPv6 addresses is one replica."""
    replicas: dict[ObjectKey, dict[str, Replica]] = {}
    for (namespace, _), piece in sorted(view.slices.items()):
        known = replicas.setdefault((namespace, piece.service), {})
        for replica in piece.replicas:
            known.setdefault(replica.id, replica)
    return {key: tuple(replica for _, replica in sorted(known.items())) for key, known in replicas.items()}
