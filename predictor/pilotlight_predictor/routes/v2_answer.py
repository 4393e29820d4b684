"""The reply to one V2 inference: encoded, packed as its client likes it, counted and sent.

v2_infer.py comes here when the model has answered one request; v2_together.py where a batch is not answered as one.
"""

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import Final

from pilotlight.contract import HEADER_INFERENCE_LENGTH
from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.calls import JSON, Call, Reply, json_reply
from pilotlight_predictor.dispatch import error_reply
from pilotlight_predictor.errors import PredictorError
from pilotlight_predictor.inference import InferRequest, InferResponse
from pilotlight_predictor.protocol.compression import choose_encoding, compress
from pilotlight_predictor.protocol.v2_response import encode_response, is_long
from pilotlight_predictor.served import ServedVersion
from pilotlight_predictor.server import Server

BINARY: Final = "application/octet-stream"
LENGTH: Final = HEADER_INFERENCE_LENGTH.title()  # as clients that compare letter by letter know it
MAX_ID: Final = 128  # of an id in a line of the log
_ENCODING: Final[set[asyncio.Task[None]]] = set()  # the loop itself holds tasks only weakly

Finish = Callable[[Reply], None]


def error_body(error: PredictorError) -> Reply:
    """What a client sent may be quoted in it, so it need not be text that JSON can carry."""
    return json_reply({"error": str(error).encode("utf-8", "replace").decode()}, error.status)


def answer(
    server: Server,
    call: Call,
    served: ServedVersion,
    request: InferRequest,
    finish: Finish,
    result: InferResponse | Exception,
) -> None:
    """Replies at once, or when a thread has written a long answer."""
    call.on_abandon = None
    if isinstance(result, InferResponse) and is_long(request, result, "accept-encoding" in call.headers):
        task = asyncio.get_running_loop().create_task(_encode_long(server, call, served, request, result, finish))
        _ENCODING.add(task)
        task.add_done_callback(_ENCODING.discard)
        return
    reply = _reply(call, request, result)
    server.observe(served, "v2", reply.status, perf_counter() - call.started)
    finish(reply)


async def _encode_long(
    server: Server, call: Call, served: ServedVersion, request: InferRequest, result: InferResponse, finish: Finish
) -> None:
    reply = await server.codecs.run(lambda: _reply(call, request, result))
    server.observe(served, "v2", reply.status, perf_counter() - call.started)
    finish(reply)


def _reply(call: Call, request: InferRequest, result: InferResponse | Exception) -> Reply:
    if isinstance(result, Exception):
        return error_reply(error_body, result, call)
    try:
        header_length, pieces = encode_response(request, result)
        accept = call.headers.get("accept-encoding")
        if header_length is None and not accept:
            return Reply(200, pieces)
        return packed_as_asked(accept or "", header_length, pieces)
    except Exception as error:  # a model may name its outputs as JSON cannot: who asked learns it, and at once
        return error_reply(error_body, error, call)


def packed_as_asked(accept: str, header_length: int | None, pieces: list[Buffer]) -> Reply:
    """A reply whose headers say where its JSON ends, or how it is packed."""
    headers = {} if header_length is None else {LENGTH: str(header_length)}
    if accept:
        pieces = _compressed(accept, pieces, headers)
    return Reply(200, pieces, JSON if header_length is None else BINARY, headers or None)


def _compressed(accept: str, pieces: list[Buffer], headers: dict[str, str]) -> list[Buffer]:
    encoding = choose_encoding(accept)
    packed = compress(pieces, encoding) if encoding else None
    if packed is None:
        return pieces
    headers["Content-Encoding"] = encoding or ""
    headers["Vary"] = "Accept-Encoding"
    return packed
