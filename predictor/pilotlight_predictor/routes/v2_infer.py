"""POST …/infer: the hot path. Decode, hand to the model, encode when it answers; no coroutine in between."""

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter

from pilotlight.contract import HEADER_INFERENCE_LENGTH, HEADER_REQUEST_ID
from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.calls import JSON, Call, Reply, json_reply
from pilotlight_predictor.dispatch import error_reply
from pilotlight_predictor.errors import BadRequest, Cancelled, PredictorError
from pilotlight_predictor.inference import NEWEST, InferRequest, InferResponse
from pilotlight_predictor.protocol.compression import choose_encoding, compress
from pilotlight_predictor.protocol.pieces import LONG
from pilotlight_predictor.protocol.v2_request import decode_raw_request, decode_request
from pilotlight_predictor.protocol.v2_response import encode_response, is_long
from pilotlight_predictor.served import ServedVersion
from pilotlight_predictor.server import Server

MAX_ID = 128  # of an id in a line of the log
BINARY = "application/octet-stream"
LENGTH = HEADER_INFERENCE_LENGTH.title()  # as clients that compare letter by letter know it
_ENCODING: set[asyncio.Task[None]] = set()  # the loop itself holds tasks only weakly


def error_body(error: PredictorError) -> Reply:
    """What a client sent may be quoted in it, so it need not be text that JSON can carry."""
    return json_reply({"error": str(error).encode("utf-8", "replace").decode()}, error.status)


def version_of(call: Call) -> int:
    text = call.params.get("version")
    if text is None:
        return NEWEST
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise BadRequest(f"version = '{text[:50]}', must be a number")
    return int(text)


def infer(server: Server, call: Call) -> Awaitable[Reply] | None:
    version = version_of(call)
    served = server.find(call.params["model"], version)
    if len(call.body) > LONG and _json_length(call) > LONG:
        return _infer_long(server, call, served, version)
    _infer(server, call, served, _decode(served, call, version), call.finish)
    return None


async def _infer_long(server: Server, call: Call, served: ServedVersion, version: int) -> Reply:
    """JSON of megabytes is read in a thread; meanwhile the client may leave, and the model may be replaced."""
    request = await server.codecs.run(lambda: _decode(served, call, version))
    if call.abandoned:
        raise Cancelled("the client has gone")
    reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    _infer(server, call, server.find(served.name, version), request, reply.set_result)
    return await reply


def _infer(
    server: Server, call: Call, served: ServedVersion, request: InferRequest, finish: Callable[[Reply], None]
) -> None:
    request.request_id = call.headers.get(HEADER_REQUEST_ID) or request.id[:MAX_ID]

    def done(result: InferResponse | Exception) -> None:
        call.on_abandon = None
        if isinstance(result, InferResponse) and is_long(request, result, "accept-encoding" in call.headers):
            task = asyncio.get_running_loop().create_task(_encode_long(server, call, served, request, result, finish))
            _ENCODING.add(task)
            task.add_done_callback(_ENCODING.discard)
            return
        reply = _reply(call, request, result)
        server.observe(served, "v2", reply.status, perf_counter() - call.started)
        finish(reply)

    server.metrics.in_flight += 1
    try:
        ticket = served.infer(request, done, server.limits)
    except Exception:
        server.metrics.in_flight -= 1
        raise
    call.on_abandon = ticket.cancel


def _json_length(call: Call) -> int:
    text = call.headers.get(HEADER_INFERENCE_LENGTH, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else len(call.body)


async def _encode_long(
    server: Server,
    call: Call,
    served: ServedVersion,
    request: InferRequest,
    result: InferResponse,
    finish: Callable[[Reply], None],
) -> None:
    reply = await server.codecs.run(lambda: _reply(call, request, result))
    server.observe(served, "v2", reply.status, perf_counter() - call.started)
    finish(reply)


def _decode(served: ServedVersion, call: Call, version: int) -> InferRequest:
    body = call.body
    length = call.headers.get(HEADER_INFERENCE_LENGTH)
    if length is None:
        return decode_request(served.name, version, body, None)
    if not (length.isascii() and length.isdigit()) or len(length) > 18:
        raise BadRequest(f"{LENGTH} = '{length[:50]}', must be the number of bytes of the JSON")
    if int(length) == 0:
        return _decode_raw(served, version, body)
    return decode_request(served.name, version, body, int(length))


def _decode_raw(served: ServedVersion, version: int, body: Buffer) -> InferRequest:
    if len(served.inputs) != 1:
        raise BadRequest(f"a raw request needs a model with one input; '{served.name}' has {len(served.inputs)}")
    spec = served.inputs[0]
    if served.config.max_batch_size:
        spec = spec._replace(shape=spec.shape[1:])
    return decode_raw_request(served.name, version, body, spec)


def _reply(call: Call, request: InferRequest, result: InferResponse | Exception) -> Reply:
    if isinstance(result, Exception):
        return error_reply(error_body, result, call)
    try:
        return _encoded(call, request, result)
    except Exception as error:  # a model may name its outputs as JSON cannot: who asked learns it, and at once
        return error_reply(error_body, error, call)


def _encoded(call: Call, request: InferRequest, result: InferResponse) -> Reply:
    header_length, pieces = encode_response(request, result)
    accept = call.headers.get("accept-encoding")
    if header_length is None and not accept:
        return Reply(200, pieces)
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
