"""Responses of the gateway itself: JSON errors with the request id, and its own pages; the interface of admission."""

import json
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from pilotlight.contract import HEADER_REQUEST_ID
from pilotlight.gateway.routing_table import Route
from pilotlight.wire.http1 import render_head
from pilotlight.wire.service_access import Refusal


class ErrorResponse(NamedTuple):
    """Response of the gateway itself: a status, a message of one sentence, and headers.

    `body` is that of an engine, in JSON, in place of the message.
    """

    status: int
    message: str
    headers: Mapping[str, str] = {}
    body: bytes = b""


class RequestRejected(Exception):
    """A request that no replica will get, with the response for its client."""

    def __init__(self, response: ErrorResponse) -> None:
        super().__init__(response.message)
        self.response = response


class Admission(Protocol):
    """Access and rate limits, checked before the body is read.

    `headers` have lower-case names; `peer` is the client's address. `allows` checks access alone, and counts nothing.
    `authenticate` returns the name of the client, empty if the route has no access rules, or the refusal; for `admit`,
    which authenticates without it.
    """

    def admit(
        self, route: Route, headers: Mapping[str, str], peer: str, client: str | Refusal | None = None
    ) -> ErrorResponse | None: ...
    def allows(self, headers: Mapping[str, str]) -> Callable[[Route], bool]: ...
    def authenticate(self, route: Route, headers: Mapping[str, str]) -> str | Refusal: ...


PageHandler = Callable[[], tuple[int, str, bytes]]  # status, content type, body

INTERIM_RESPONSE = b"HTTP/1.1 100 Continue\r\n\r\n"
NO_ROUTE = ErrorResponse(404, "no service at this address")
NO_REVISION = ErrorResponse(503, "no revision of this service has traffic; set it with `platformctl traffic`")
TIMED_OUT = ErrorResponse(504, "the service did not respond in time")
CONNECTION_LOST = ErrorResponse(502, "the service closed the connection before responding; the request was not retried")
HEAD_TOO_LONG = ErrorResponse(431, "the request's head is longer than 64 KiB; send shorter headers or a shorter path")
HEAD_TIMEOUT = ErrorResponse(408, "the request's head did not arrive within 30 s")
BODY_TIMEOUT = ErrorResponse(408, "the request's body did not arrive in time; send it faster, or in parts")
UNCOUNTED = ErrorResponse(501, "its token quota counts HTTP responses alone; send a POST request")
METHOD_NOT_ALLOWED = ErrorResponse(405, "this page supports GET and HEAD", {"Allow": "GET, HEAD"})


def to_console(url: str) -> ErrorResponse:
    return ErrorResponse(302, f"the console is at {url}", {"Location": url})


def unknown_tag(tag: str) -> ErrorResponse:
    return ErrorResponse(404, f"no revision has the tag or name {tag[:63]!r}; `platformctl status` lists them")


def render_error(error: ErrorResponse, request_id: str, close: bool, bodiless: bool = False) -> bytes:
    body = error.body or json.dumps({"error": error.message}, ensure_ascii=False).encode()
    headers = {**error.headers, HEADER_REQUEST_ID: request_id}
    head = render_head(error.status, "application/json", len(body), headers, close)
    return head if bodiless else head + body


def render_page(status: int, content_type: str, body: bytes, close: bool, bodiless: bool) -> bytes:
    head = render_head(status, content_type, len(body), None, close)
    return head if bodiless else head + body
