"""From a request's head to what is done with it: the route, and the head that its replica will get.

A client on a kept connection repeats its head, so a connection remembers the last `Prepared` with the bytes it was made
from; it holds for as long as the table does.
"""

import hmac
from collections.abc import Mapping
from typing import Final, NamedTuple

from pilotlight.contract import HEADER_REQUEST_ID
from pilotlight.gateway.choice import LiveRoute
from pilotlight.gateway.gate import Refusal
from pilotlight.gateway.replies import NO_ROUTE
from pilotlight.gateway.routing import Aim, Key, OwnAim, Router
from pilotlight.gateway.table import Route, Table
from pilotlight.wire.heads import RequestHead, passed_on

NOBODY: Final = ("", "")


class Landscape:
    """All that one table says, looked up by the requests that it governs."""

    __slots__ = ("generation", "router", "routes")

    def __init__(self, table: Table, routes: dict[Key, LiveRoute]) -> None:
        self.generation = table.generation
        self.router = Router(table)
        self.routes = routes


class Prepared(NamedTuple):
    """`route` None: the gateway answers itself, with `page` or `refusal`."""

    landscape: Landscape
    head: RequestHead
    route: LiveRoute | None
    key: Key
    tag: str
    start: bytes  # of the head for the replica, up to its request id or its end
    request_id: str  # "": the client gave none
    page: str = ""
    refusal: Refusal | None = None


def prepare(landscape: Landscape, head: RequestHead, peer: str, own_port: Key | None) -> Prepared:
    aim = landscape.router.aim(head.target, head.headers, own_port)
    request_id = head.headers.get(HEADER_REQUEST_ID, "")
    if isinstance(aim, OwnAim):
        return Prepared(landscape, head, None, NOBODY, "", b"", request_id, page=aim.page)
    route = landscape.routes.get(aim.key) if aim is not None else None
    if aim is None or route is None or (route.route.internal and not _inside(route.route, aim, peer)):
        return Prepared(landscape, head, None, NOBODY, "", b"", request_id, refusal=NO_ROUTE)
    if route.route.internal:
        aim = aim._replace(tag="")
    return Prepared(landscape, head, route, aim.key, aim.tag, rewritten(head, aim, peer), request_id)


def _inside(route: Route, aim: Aim, peer: str) -> bool:
    return is_loopback(peer) and hmac.compare_digest(aim.tag.encode(), route.key.encode())


def rewritten(head: RequestHead, aim: Aim, peer: str) -> bytes:
    """The head without this connection's own headers and with who asked; its last line is not yet there."""
    lines = [f"{head.method} {aim.target} HTTP/1.1".encode("latin-1")]
    lines += [line.raw for line in passed_on(head.lines, head.upgrade) if line.name != "x-forwarded-for"]
    lines += [f"{name}: {value}".encode("latin-1") for name, value in forwarded(head.headers, aim, peer).items()]
    return b"\r\n".join(lines) + b"\r\n"


def forwarded(headers: Mapping[str, str], aim: Aim, peer: str) -> dict[str, str]:
    """Whom the request came from and what it was sent to; what a proxy before us said of that is kept."""
    before = headers.get("x-forwarded-for", "")
    added = {"X-Forwarded-For": f"{before}, {peer}" if before else peer or "local"}
    if "x-forwarded-proto" not in headers:
        added["X-Forwarded-Proto"] = "http"
    if "host" not in headers:  # HTTP/1.0
        added["Host"] = f"{aim.key[1]}.{aim.key[0]}"
    elif "x-forwarded-host" not in headers:
        added["X-Forwarded-Host"] = headers["host"]
    return added


def is_loopback(peer: str) -> bool:
    """A unix socket's peer has no address."""
    return peer in {"", "::1"} or peer.startswith(("127.", "::ffff:127."))
