"""Where a request wants to go: from its target, its Host and its headers to a route. Pure; made anew for each table."""

from collections.abc import Mapping
from typing import NamedTuple

from pilotlight.contract import HEADER_TAG, HEADER_TAG_KNATIVE, RESERVED_NAMES
from pilotlight.gateway.table import Table

Key = tuple[str, str]  # namespace and name of a route
DEFAULT_NAMESPACE = "default"


class Aim(NamedTuple):
    """A route, the tag or revision that was asked for ("": by weight), and the target without the route's prefix."""

    key: Key
    tag: str
    target: str


class OwnAim(NamedTuple):
    """One of the gateway's own pages, by its first segment."""

    page: str


class Router:
    def __init__(self, table: Table) -> None:
        self._keys = frozenset((route.namespace, route.name) for route in table.routes)
        self._hosts = {
            host.lower().rstrip("."): (route.namespace, route.name) for route in table.routes for host in route.hosts
        }

    def aim(self, target: str, headers: Mapping[str, str], own_port: Key | None) -> Aim | OwnAim | None:
        """None: nothing lives there. A port of its own beats a host, and a host beats the path."""
        target, host = origin_form(target, headers.get("host", ""))
        key = own_port or self._hosts.get(bare_host(host))
        if key is not None:
            return Aim(key, tag_of(headers), target) if key in self._keys else None
        return self._by_path(target, headers)

    def _by_path(self, target: str, headers: Mapping[str, str]) -> Aim | OwnAim | None:
        path, mark, query = target.partition("?")
        _, first, *rest = path.split("/", 3) if path.startswith("/") else ("", "")
        if first in RESERVED_NAMES:
            return OwnAim(first)
        name, _, tag = (rest[0] if rest else "").partition("@")
        if name and (first, name) in self._keys:  # the full form, even where a service is called as a namespace
            return Aim((first, name), tag or tag_of(headers), "/" + "".join(rest[1:]) + mark + query)
        name, _, tag = first.partition("@")
        if (DEFAULT_NAMESPACE, name) not in self._keys:
            return None
        return Aim((DEFAULT_NAMESPACE, name), tag or tag_of(headers), "/" + "/".join(rest) + mark + query)


def origin_form(target: str, host: str) -> tuple[str, str]:
    """Path with query, and the host: a proxy's client names both in the target."""
    scheme, mark, rest = target.partition("://")
    if not mark or scheme.lower() not in {"http", "https"}:
        return target, host
    cut = min((at for at in (rest.find("/"), rest.find("?")) if at >= 0), default=len(rest))
    path = rest[cut:]
    return path if path.startswith("/") else "/" + path, rest[:cut]


def bare_host(host: str) -> str:
    """Without port and final dot, in lower case; an IPv6 address keeps its brackets."""
    name, mark, port = host.rpartition(":")
    if mark and port.isdigit():
        host = name
    return host.lower().rstrip(".")


def tag_of(headers: Mapping[str, str]) -> str:
    return headers.get(HEADER_TAG) or headers.get(HEADER_TAG_KNATIVE, "")
