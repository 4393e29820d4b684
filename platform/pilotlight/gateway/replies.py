"""Answers of the gateway's own: JSON with one sentence, and the id under which the request can be found."""

import json

from pilotlight.contract import HEADER_REQUEST_ID
from pilotlight.gateway.gate import Refusal
from pilotlight.wire.http1 import render_head

JSON = "application/json"

NO_ROUTE = Refusal(
    404, "no service lives at this address; use /{namespace}/{service}/… or, in the namespace default, /{service}/…"
)
NO_REVISION = Refusal(
    503, "no revision of this service has a share of its traffic; give one with `platformctl traffic`"
)
LATE = Refusal(504, "the service did not answer in time")
BROKEN = Refusal(502, "the service closed the connection before it had answered; the request was not repeated")
TOO_LONG = Refusal(431, "the request's head is longer than 64 KiB; send shorter headers or a shorter path")
TOO_SLOW = Refusal(408, "the request's head did not arrive within 30 s")
NOT_READ_ONLY = Refusal(405, "this page is read with GET or HEAD", {"Allow": "GET, HEAD"})


def no_tag(tag: str) -> Refusal:
    return Refusal(404, f"no revision has the tag or name {tag[:63]!r}; `platformctl status` lists those there are")


def rendered(refusal: Refusal, request_id: str, close: bool, bodiless: bool = False) -> bytes:
    body = json.dumps({"error": refusal.message}, ensure_ascii=False).encode()
    headers = {**refusal.headers, HEADER_REQUEST_ID: request_id}
    head = render_head(refusal.status, JSON, len(body), headers, close)
    return head if bodiless else head + body


def page(status: int, content_type: str, body: bytes, close: bool, bodiless: bool) -> bytes:
    head = render_head(status, content_type, len(body), None, close)
    return head if bodiless else head + body
