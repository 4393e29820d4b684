"""Writes responses of the fast protocol: head and body buffers, joined only if that is cheaper."""

import asyncio
from typing import Final

from pilotlight.wire.http1 import render_head
from pilotlight_predictor.calls import HttpResponse

JOIN_BELOW: Final = 1 << 14  # smaller bodies are cheaper to copy after the head than to write separately


def write_response(
    transport: asyncio.Transport, response: HttpResponse, headers: dict[str, str] | None, close: bool
) -> None:
    body = response.body
    assert isinstance(body, list)
    length = len(body[0]) if len(body) == 1 else sum(map(len, body))
    head = render_head(response.status, response.content_type, length, headers, close)
    if length > JOIN_BELOW:
        transport.writelines([head, *(piece for piece in body if len(piece))])
    else:
        transport.write(head + body[0] if len(body) == 1 else b"".join((head, *body)))
