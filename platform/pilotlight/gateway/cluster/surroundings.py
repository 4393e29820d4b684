"""Cluster objects watched by the gateway, and what it derives from them: routes and peers."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from pilotlight.gateway.cluster import objects, tables
from pilotlight.gateway.cluster.api import KubeApi
from pilotlight.gateway.cluster.settings import ClusterSettings
from pilotlight.gateway.cluster.watching import Informer, WatchedKind
from pilotlight.gateway.table import Route

SLICES: Final = "/apis/discovery.k8s.io/v1/endpointslices"
SERVICES: Final = "/api/v1/services"
ROUTES: Final = "/apis/gateway.networking.k8s.io/v1/httproutes"
GROUPS: Final = "/apis/leaderworkerset.x-k8s.io/v1/leaderworkersets"
WORKLOADS: Final = ("/apis/apps/v1/deployments", "/apis/apps/v1/statefulsets", GROUPS)


class ClusterState:
    """`changed` is called after every relevant change."""

    def __init__(self, api: KubeApi, settings: ClusterSettings, changed: Callable[[], None]) -> None:
        ours = f"{settings.service}.{settings.namespace}"
        peers = f"/apis/discovery.k8s.io/v1/namespaces/{settings.namespace}/endpointslices"
        peer_selector = f"{objects.SERVICE_NAME}={settings.peers}"
        select = objects.SELECTOR
        self.services = Informer(
            api, WatchedKind(SERVICES, select, partial(objects.entry_service, gateway=ours)), changed
        )
        self.slices = Informer(api, WatchedKind(SLICES, select, objects.slice_of), changed)
        self.hosts = Informer(api, WatchedKind(ROUTES, select, objects.route_hosts, optional=True), changed)
        kinds = [WatchedKind(path, select, objects.workload, optional=path == GROUPS) for path in WORKLOADS]
        self.workloads = [Informer(api, kind, changed) for kind in kinds]
        self.peers = Informer(api, WatchedKind(peers, peer_selector, objects.pod_addresses), changed)

    @property
    def informers(self) -> Sequence[Informer[Any]]:
        return self.services, self.slices, self.hosts, *self.workloads, self.peers

    @property
    def unsynced(self) -> list[str]:
        """Paths of the kinds that are not listed yet."""
        return [each.kind.path for each in self.informers if not each.synced]

    def routes(self) -> tuple[Route, ...]:
        workloads = {key: workload for informer in self.workloads for key, workload in informer.objects.items()}
        return tables.routes(
            tables.ClusterView(self.services.objects, workloads, self.hosts.objects, self.slices.objects)
        )  # fmt: skip

    def pods(self) -> set[str]:
        return {address for addresses in self.peers.objects.values() for address in addresses}
