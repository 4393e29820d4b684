"""Routing table of the gateway, built by the control process and sent as JSON, and the match of a request to a route.

A table is complete and replaces the one before. Replicas missing from it get no new requests and finish those in
flight; a backend without replicas holds its requests until a later table has one.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from msgspec import Struct

from pilotlight.contract import HEADER_TAG, HEADER_TAG_KNATIVE, RESERVED_NAMES
from pilotlight.wire.client_address import foreign_site
from pilotlight.wire.request_log.settings import LogSettings
from pilotlight.wire.service_access import Access, Rate, TokenQuota

HOLD_LIMIT: Final = 1000
DEFAULT_NAMESPACE: Final = "default"

RouteKey = tuple[str, str]  # namespace and name of a route


class Replica(Struct, frozen=True):
    """A replica that is ready. `id` stays the same for its lifetime."""

    id: str
    port: int
    host: str = "127.0.0.1"
    grpc_port: int = 0
    authority: str = ""  # Host header that it needs, such as a Knative Service's; "": the client's


class Backend(Struct, frozen=True):
    """One revision. `weight` is its traffic share in percent; 0: reachable by its tags or its name only."""

    revision: str
    workload: str
    weight: int
    replicas: tuple[Replica, ...] = ()
    tags: tuple[str, ...] = ()
    concurrency: int = 0  # requests in flight per replica; 0: no limit
    hold_s: float = 300.0  # maximum time that a request is held
    hold_limit: int = HOLD_LIMIT  # maximum number of held requests
    unavailable: str = ""  # why no replica will come (a model that cannot be loaded): requests get 503 at once
    pending: str = ""  # what its next replica waits for, such as GPU memory
    starts_at: float = 0.0  # no replica starts before, after crashes; on the clock of this machine since its boot
    digest: str = ""  # of its model, as far as it is pinned


class RouteAdapter(Struct, frozen=True):
    """A LoRA adapter on the replicas of a route. Those of one name share its requests by `percent`."""

    name: str  # in OpenAI requests
    model: str  # what the engine calls it
    fields: str = ""  # JSON that requests get beside the model
    percent: int = 100
    base_fields: str = ""  # likewise those for the base model


class Route(Struct, frozen=True):
    """A service, or one workload behind it (`internal`: for processes of the platform only).

    Clients of an internal route send its `key` in place of a tag, `/{namespace}/{name}@{key}/…`. Without a key, any
    local process could bypass the authentication of the service. On a service's own route its other components send
    the key in place of the client's token, which an explainer does not have.
    """

    namespace: str
    name: str
    backends: tuple[Backend, ...] = ()
    hosts: tuple[str, ...] = ()
    port: int = 0  # dedicated to this route; 0: none
    grpc_port: int = 0
    timeout_s: float = 300.0  # from the first byte sent to a replica to the last byte of its response
    access: Access | None = None
    rate: Rate | None = None
    quota: TokenQuota | None = None
    internal: bool = False
    key: str = ""
    models: tuple[str, ...] = ()  # its names in OpenAI requests to /v1; the engine knows the first
    request_log: LogSettings | None = None
    audit: bool = False  # record each request in the audit log
    adapters: tuple[RouteAdapter, ...] = ()
    public: tuple[str, ...] = ()  # prefixes of the paths that lead to replicas; empty: all do
    failed: bool = False  # its first start failed, and none has succeeded: its models are not listed

    @property
    def has_tokens(self) -> bool:
        """Whether the tokens of its requests are counted."""
        return bool(self.models or self.adapters or self.quota)


class Table(Struct, frozen=True):
    generation: int = 0
    routes: tuple[Route, ...] = ()
    allowed_hosts: tuple[str, ...] = ()  # that loopback listeners accept beside those of the routes
    console: str = ""  # URL that `/` of loopback listeners leads browsers to


class SmoothWeightedRoundRobin:
    """Nginx' smooth weighted round robin: exact shares over any 100 requests, without bursts.

    Each turn every credit grows by its weight; the highest wins and reduced by the total weight.
    """

    def __init__(self, weights: dict[str, int]) -> None:
        self.weights = {name: weight for name, weight in weights.items() if weight > 0}
        self._total = sum(self.weights.values())
        self._credit = dict.fromkeys(self.weights, 0)

    def next(self) -> str | None:
        credit = self._credit
        for name, weight in self.weights.items():
            credit[name] += weight
        chosen = max(credit, key=credit.__getitem__, default=None)
        if chosen is not None:
            credit[chosen] -= self._total
        return chosen


class RouteMatch(NamedTuple):
    """A route, the requested tag or revision ("": by weight), and the target without the route's prefix."""

    key: RouteKey
    tag: str
    target: str


class PageMatch(NamedTuple):
    """One of the gateway's own pages, by its first path segment."""

    page: str


class RouteMatcher:
    def __init__(self, table: Table) -> None:
        self._keys = frozenset((route.namespace, route.name) for route in table.routes)
        self._hosts = {
            host.lower().rstrip("."): (route.namespace, route.name) for route in table.routes for host in route.hosts
        }
        self._allowed_hosts = frozenset({*self._hosts, *table.allowed_hosts})

    def foreign_site(self, headers: Mapping[str, str]) -> str:
        """Return why a loopback listener refuses the request of a web page; empty: it does not."""
        return foreign_site(headers, self._allowed_hosts)

    def match(
        self, target: str, headers: Mapping[str, str], port_route: RouteKey | None
    ) -> RouteMatch | PageMatch | None:
        """Return the match, or None. A route's own port has precedence over the host, the host over the path."""
        target, host = origin_form(target, headers.get("host", ""))
        key = port_route or self._hosts.get(normalize_host(host))
        if key is not None:
            return RouteMatch(key, tag_of(headers), target) if key in self._keys else None
        return self._by_path(target, headers)

    def _by_path(self, target: str, headers: Mapping[str, str]) -> RouteMatch | PageMatch | None:
        path, mark, query = target.partition("?")
        _, first, *rest = path.split("/", 3) if path.startswith("/") else ("", "")
        if first in RESERVED_NAMES:
            return PageMatch(first)
        name, _, tag = (rest[0] if rest else "").partition("@")
        if name and (first, name) in self._keys:  # the full form, even if a service has the name of a namespace
            return RouteMatch((first, name), tag or tag_of(headers), "/" + "".join(rest[1:]) + mark + query)
        name, _, tag = first.partition("@")
        if (DEFAULT_NAMESPACE, name) not in self._keys:
            return PageMatch("healthz") if path == "/health" else None  # llama.cpp's client waits for it
        return RouteMatch((DEFAULT_NAMESPACE, name), tag or tag_of(headers), "/" + "/".join(rest) + mark + query)


def origin_form(target: str, host: str) -> tuple[str, str]:
    """Return path with query, and the host; clients of a proxy send both in an absolute-form target."""
    scheme, mark, rest = target.partition("://")
    if not mark or scheme.lower() not in {"http", "https"}:
        return target, host
    cut = min((at for at in (rest.find("/"), rest.find("?")) if at >= 0), default=len(rest))
    path = rest[cut:]
    return path if path.startswith("/") else "/" + path, rest[:cut]


def normalize_host(host: str) -> str:
    """Return the host in lower case, without port and final dot; an IPv6 address keeps its brackets."""
    name, mark, port = host.rpartition(":")
    if mark and port.isdigit():
        host = name
    return host.lower().rstrip(".")


def tag_of(headers: Mapping[str, str]) -> str:
    return headers.get(HEADER_TAG) or headers.get(HEADER_TAG_KNATIVE, "")
