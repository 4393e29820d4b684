"""Everything that the gateway watches in its cluster, and what it makes of it: routes, and the pods of its peers."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from pilotlight.gateway.cluster import objects, tables
from pilotlight.gateway.cluster.api import Api
from pilotlight.gateway.cluster.settings import ClusterSettings
from pilotlight.gateway.cluster.watching import Kind, Watched
from pilotlight.gateway.table import Route

SLICES: Final = "/apis/discovery.k8s.io/v1/endpointslices"
SERVICES: Final = "/api/v1/services"
ROUTES: Final = "/apis/gateway.networking.k8s.io/v1/httproutes"
GROUPS: Final = "/apis/leaderworkerset.x-k8s.io/v1/leaderworkersets"
WORKLOADS: Final = ("/apis/apps/v1/deployments", "/apis/apps/v1/statefulsets", GROUPS)


class Surroundings:
    """`changed` is called whenever anything of it differs."""

    def __init__(self, api: Api, settings: ClusterSettings, changed: Callable[[], None]) -> None:
        ours = f"{settings.service}.{settings.namespace}"
        peers = f"/apis/discovery.k8s.io/v1/namespaces/{settings.namespace}/endpointslices"
        of_peers = f"{objects.SERVICE_NAME}={settings.peers}"
        select = objects.SELECTOR
        self.services = Watched(api, Kind(SERVICES, select, partial(objects.address, gateway=ours)), changed)
        self.slices = Watched(api, Kind(SLICES, select, objects.slice_of), changed)
        self.hosts = Watched(api, Kind(ROUTES, select, objects.hosts, optional=True), changed)
        kinds = [Kind(path, select, objects.workload, optional=path == GROUPS) for path in WORKLOADS]
        self.workloads = [Watched(api, kind, changed) for kind in kinds]
        self.peers = Watched(api, Kind(peers, of_peers, objects.pod_addresses), changed)

    @property
    def everything(self) -> Sequence[Watched[Any]]:
        return self.services, self.slices, self.hosts, *self.workloads, self.peers

    @property
    def missing(self) -> list[str]:
        """What was not listed yet."""
        return [each.kind.path for each in self.everything if not each.synced]

    def routes(self) -> tuple[Route, ...]:
        workloads = {key: found for kind in self.workloads for key, found in kind.objects.items()}
        return tables.routes(
            tables.View(self.services.objects, workloads, self.hosts.objects, self.slices.objects)
        )  # fmt: skip

    def pods(self) -> set[str]:
        return {address for addresses in self.peers.objects.values() for address in addresses}
