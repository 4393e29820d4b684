"""Match of a request (target, Host, headers) to a route. Pure; rebuilt for each table."""

from collections.abc import Mapping
from typing import NamedTuple

from pilotlight.contract import HEADER_TAG, HEADER_TAG_KNATIVE, RESERVED_NAMES
from pilotlight.gateway.table import Table

RouteKey = tuple[str, str]  # namespace and name of a route
DEFAULT_NAMESPACE = "default"


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
            return None
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
