"""Requests whose body decides where they go: on the replica, by the prefix of a prompt.

The body is read as far as the decision needs it; the rest streams to the replica.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from pilotlight.contract import HEADER_SESSION
from pilotlight.gateway.proxy.prefix_index import MAX_PROMPT_BYTES, read_prompt
from pilotlight.gateway.proxy.proxied_request import ProxiedRequest

PROMPT_WAIT_S: Final = 0.05  # for a prompt that arrives after its head

Continue = Callable[[ProxiedRequest], None]


def await_prompt(request: ProxiedRequest, submit: Continue) -> None:
    """Call `submit` with the request's prompt, once enough of the body is there, or after PROMPT_WAIT_S."""
    client = request.client

    def proceed() -> None:
        if client.request is request:  # else its client has disconnected, or its body is malformed
            client.on_body = None
            session = request.prepared.head.headers.get(HEADER_SESSION, "")
            request.prompt = read_prompt(request.body_prefix(MAX_PROMPT_BYTES), session)
            submit(request)

    def read(piece: bytes) -> None:
        if request.body_complete or request.buffered >= MAX_PROMPT_BYTES:
            timer.cancel()
            proceed()

    if request.body_complete or request.buffered >= MAX_PROMPT_BYTES:
        proceed()
    else:
        timer = asyncio.get_running_loop().call_later(PROMPT_WAIT_S, proceed)
        client.on_body = read
