"""Preparation of a request from its head: the route, the rewritten head for the replica, and the choice of a revision.

Clients repeat their heads on a connection, so a connection caches its last `PreparedRequest`, which is valid as long as
the routing table is.
"""

import hmac
import math
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from pilotlight.contract import HEADER_HOLD_TIMEOUT, HEADER_REQUEST_ID, HEADER_REVISION
from pilotlight.gateway.proxy.backend import LiveBackend
from pilotlight.gateway.proxy.model_routes import ModelRoutes
from pilotlight.gateway.proxy.responses import NO_ROUTE, ErrorResponse, to_console
from pilotlight.gateway.routing_table import (
    PageMatch,
    Route,
    RouteAdapter,
    RouteKey,
    RouteMatch,
    RouteMatcher,
    SmoothWeightedRoundRobin,
    Table,
    origin_form,
)
from pilotlight.wire import client_address
from pilotlight.wire.http1_strict_parser import RequestHead, end_to_end_headers

NO_KEY: Final = ("", "")
EXTENDED: Final = frozenset({"x-forwarded-for", "x-forwarded-prefix"})  # headers that each proxy adds to
MODELS_PAGE: Final = "v1"  # routed by the model that the body names
# Of OpenAI's and Anthropic's APIs: their replica is chosen by the prefix of the prompt.
PROMPT_PATHS: Final = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
# Of OpenAI's API, whose requests name a model; /v1/models/ is also KServe's V1.
_MODEL_PATH: Final = re.compile(r"(?:/openai)?/v1/(?!models(?:/|$))")


class LiveRoute:
    """A route of the table in force. `previous`: the same route before; with equal weights its credits continue."""

    def __init__(self, route: Route, backends: dict[str, LiveBackend], previous: "LiveRoute | None") -> None:
        self.route = route
        # Its requests have observers.
        self.observed = bool(route.has_tokens or route.request_log or route.audit)
        self.backends = backends
        scheduler = SmoothWeightedRoundRobin({backend.revision: backend.weight for backend in route.backends})
        if previous is not None and previous._scheduler.weights == scheduler.weights:
            scheduler = previous._scheduler
        self._scheduler: SmoothWeightedRoundRobin = scheduler
        split = len(scheduler.weights) > 1
        for revision, live in backends.items():
            live.revision_line = f"{HEADER_REVISION}: {revision}\r\n".encode() if split else b""
        self._single = backends[next(iter(scheduler.weights))] if len(scheduler.weights) == 1 else None
        self._by_tag = {tag: backends[backend.revision] for backend in route.backends for tag in backend.tags}
        self._by_tag.update(backends)  # a revision's name beats a tag

    @property
    def has_choice(self) -> bool:
        """Whether a revision has several replicas."""
        return any(len(backend.replicas) > 1 for backend in self.backends.values())

    def choose(self, tag: str) -> LiveBackend | None:
        """Return the backend; None: no revision has that tag or name, or none has a weight."""
        if tag:
            return self._by_tag.get(tag)
        if self._single is not None:
            return self._single
        chosen = self._scheduler.next()
        return self.backends[chosen] if chosen is not None else None


class RoutingState:
    """Lookup structures of one routing table."""

    __slots__ = ("_models", "_table", "console", "generation", "matcher", "routes")

    def __init__(self, table: Table, routes: dict[RouteKey, LiveRoute]) -> None:
        self.generation, self.console = table.generation, table.console
        self.matcher = RouteMatcher(table)
        self.routes = routes
        self._table = table
        self._models: ModelRoutes | None = None

    @property
    def models(self) -> ModelRoutes:
        """Models of the table, indexed for the first request to `/v1`."""
        self._models = self._models or ModelRoutes(self._table.routes)
        return self._models


class PreparedRequest(NamedTuple):
    """`route` None: the gateway answers itself, with `page` or `error`, or the body decides on the route."""

    routing: RoutingState
    head: RequestHead
    route: LiveRoute | None
    key: RouteKey
    tag: str
    upstream_head: bytes  # without its last lines: request id and the empty line
    request_id: str  # "": the client sent none
    page: str = ""
    error: ErrorResponse | None = None
    component: bool = False  # sent by another component of the service, which has the route's key
    max_hold_s: float = math.inf  # how long the client lets it be held
    has_prompt: bool = False
    names_model: bool = False  # the body names the model, at a service's own address
    adapter: RouteAdapter | None = None  # that the request's model names
    renamed: tuple[str, str] | None = None  # its model: the engine's name of it, and the client's if that is another

    @property
    def revision_line(self) -> bytes:
        """The version of an adapter as a header of the response; empty without an adapter."""
        return f"{HEADER_REVISION}: {quote(self.adapter.model, '/:')}\r\n".encode() if self.adapter else b""

    def for_host(self, host: str) -> "PreparedRequest":
        return self._replace(upstream_head=with_headers(self.upstream_head, {"Host": host}))


def prepare(
    routing: RoutingState, head: RequestHead, peer: str, port_route: RouteKey | None, loopback: bool = False,
    scheme: str = "http",
) -> PreparedRequest:  # fmt: skip
    """Prepare a request. `loopback`: its listener is bound to loopback, and refuses web pages of other sites."""
    if loopback and (refusal := routing.matcher.foreign_site(head.headers)):
        return PreparedRequest(routing, head, None, NO_KEY, "", b"", "", error=ErrorResponse(403, refusal))
    match = routing.matcher.match(head.target, head.headers, port_route)
    request_id = head.headers.get(HEADER_REQUEST_ID, "")
    max_hold_s = math.inf
    with suppress(ValueError):
        max_hold_s = float(head.headers.get(HEADER_HOLD_TIMEOUT, max_hold_s))
    if isinstance(match, PageMatch):
        target = origin_form(head.target, "")[0]
        models = match.page == MODELS_PAGE
        upstream_head = rewrite_head(head, RouteMatch(NO_KEY, "", target), peer, scheme) if models else b""
        return PreparedRequest(
            routing, head, None, NO_KEY, "", upstream_head, request_id, page=match.page, max_hold_s=max_hold_s,
            has_prompt=_has_prompt(target),
        )  # fmt: skip
    route = routing.routes.get(match.key) if match is not None else None
    if match is None or route is None:
        browser = loopback and head.target == "/" and "text/html" in head.headers.get("accept", "")
        error = to_console(routing.console) if browser and routing.console and head.method == "GET" else NO_ROUTE
        return PreparedRequest(routing, head, None, NO_KEY, "", b"", request_id, error=error)
    component = False
    if match.tag or route.route.internal:  # components send the key of the route as its tag
        component = is_loopback(peer) and hmac.compare_digest(match.tag.encode(), route.route.key.encode())
        if component:
            match = match._replace(tag="")
        elif route.route.internal:
            return PreparedRequest(routing, head, None, NO_KEY, "", b"", request_id, error=NO_ROUTE)
    if route.route.public and not match.target.startswith(route.route.public):
        error = ErrorResponse(404, f"{match.target.partition('?')[0]} of {match.key[1]} is not public")
        return PreparedRequest(routing, head, None, NO_KEY, "", b"", request_id, error=error)
    upstream_head, has_prompt = rewrite_head(head, match, peer, scheme), _has_prompt(match.target)
    names_model = has_prompt or (head.method == "POST" and _MODEL_PATH.match(match.target) is not None)
    return PreparedRequest(
        routing, head, route, match.key, match.tag, upstream_head, request_id, component=component,
        max_hold_s=max_hold_s, has_prompt=has_prompt, names_model=names_model,
    )  # fmt: skip


def _has_prompt(target: str) -> bool:
    return unquote(target.partition("?")[0]).endswith(PROMPT_PATHS)


def rewrite_head(head: RequestHead, match: RouteMatch, peer: str, scheme: str) -> bytes:
    """Return the head without hop-by-hop headers and with forwarding headers, without its final empty line."""
    lines = [f"{head.method} {match.target} HTTP/1.1".encode("latin-1")]
    lines += [line.raw for line in end_to_end_headers(head.lines, head.upgrade) if line.name not in EXTENDED]
    added = forwarded_headers(head, match, peer, scheme)
    lines += [f"{name}: {value}".encode("latin-1") for name, value in added.items()]
    return b"\r\n".join(lines) + b"\r\n"


def with_headers(head: bytes, headers: Mapping[str, str], dropped: Iterable[str] = ()) -> bytes:
    """Return an upstream head with these headers in place of those that have their names, and without `dropped`."""
    removed = {name.lower().encode() for name in (*headers, *dropped)}
    lines = [line for line in head.split(b"\r\n")[:-1] if line.partition(b":")[0].lower() not in removed]
    lines += [f"{name}: {value}".encode("latin-1") for name, value in headers.items()]
    return b"\r\n".join(lines) + b"\r\n"


def forwarded_headers(head: RequestHead, match: RouteMatch, peer: str, scheme: str) -> dict[str, str]:
    """Return the X-Forwarded headers and a missing Host; values of earlier proxies stay."""
    headers = head.headers
    before = headers.get("x-forwarded-for", "")
    added = {"X-Forwarded-For": f"{before}, {peer}" if before else peer or "local"}
    if "x-forwarded-proto" not in headers:
        added["X-Forwarded-Proto"] = scheme
    if "host" not in headers:  # HTTP/1.0
        added["Host"] = f"{match.key[1]}.{match.key[0]}"
    elif "x-forwarded-host" not in headers:
        added["X-Forwarded-Host"] = headers["host"]
    if prefix := headers.get("x-forwarded-prefix", "") + removed_prefix(head.target, match):
        added["X-Forwarded-Prefix"] = prefix
    return added


def removed_prefix(target: str, match: RouteMatch) -> str:
    """Return what the match removed from the path; not the key of a component, which is in place of a tag."""
    path, removed_from = (each.partition("?")[0] for each in (origin_form(target, "")[0], match.target))
    prefix = path.removesuffix(removed_from).rstrip("/")
    return "" if "@" in prefix and not match.tag else prefix


def is_loopback(peer: str) -> bool:
    """Whether the peer is on this machine; empty: the peer of a unix socket."""
    return not peer or client_address.is_loopback(peer)
