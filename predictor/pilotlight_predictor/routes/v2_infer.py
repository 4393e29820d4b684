"""POST …/infer: the hot path. Decode, hand to the model, encode when it answers; no coroutine in between.

Requests in a known form are asked and answered together with others of their batch (v2_together.py), any other one by
itself (v2_answer.py).
"""

import asyncio
from collections.abc import Awaitable
from functools import partial

from pilotlight.contract import HEADER_INFERENCE_LENGTH, HEADER_REQUEST_ID
from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.calls import Call, Reply
from pilotlight_predictor.errors import BadRequest, Cancelled, Unsupported
from pilotlight_predictor.inference import NEWEST, InferRequest
from pilotlight_predictor.protocol.pieces import LONG
from pilotlight_predictor.protocol.v2_request import decode_raw_request, decode_request
from pilotlight_predictor.routes.v2_answer import LENGTH, MAX_ID, Finish, answer
from pilotlight_predictor.routes.v2_together import together_of
from pilotlight_predictor.served import ServedVersion
from pilotlight_predictor.server import Server


def version_of(call: Call) -> int:
    text = call.params.get("version")
    if text is None:
        return NEWEST
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise BadRequest(f"version = '{text[:50]}', must be a number")
    return int(text)


def infer(server: Server, call: Call) -> Awaitable[Reply] | None:
    params = call.params
    version = version_of(call) if "version" in params else NEWEST
    served = server.find(params["model"], version)
    if served.decoupled:
        raise Unsupported("HTTP end point doesn't support models with decoupled transaction policy")
    if len(call.body) > LONG and _json_length(call) > LONG:
        return _infer_long(server, call, served, version)
    request = _decode(server, served, call, version)
    together = None if call.alone else together_of(server, served, request)
    if together is not None:
        together.ask(call, request)
    else:
        _infer(server, call, served, request, call.finish)
    return None


async def _infer_long(server: Server, call: Call, served: ServedVersion, version: int) -> Reply:
    """JSON of megabytes is read in a thread; meanwhile the client may leave, and the model may be replaced."""
    request = await server.codecs.run(lambda: _decode(server, served, call, version))
    if call.abandoned:
        raise Cancelled("the client has gone")
    reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    _infer(server, call, server.find(served.name, version), request, reply.set_result)
    return await reply


def _infer(server: Server, call: Call, served: ServedVersion, request: InferRequest, finish: Finish) -> None:
    request.request_id = call.headers.get(HEADER_REQUEST_ID) or request.id[:MAX_ID]
    done = partial(answer, server, call, served, request, finish)
    server.metrics.in_flight += 1
    try:
        # Whoever asks alone gains nothing by a turn of the loop, in which others could join the batch.
        result = served.infer_now(request, server.limits) if call.alone else None
        if result is None:
            call.on_abandon = served.infer(request, done, server.limits).cancel
    except Exception:
        server.metrics.in_flight -= 1
        raise
    if result is not None:
        done(result)


def _json_length(call: Call) -> int:
    text = call.headers.get(HEADER_INFERENCE_LENGTH, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else len(call.body)


def _decode(server: Server, served: ServedVersion, call: Call, version: int) -> InferRequest:
    body = call.body
    length = call.headers.get(HEADER_INFERENCE_LENGTH)
    if length is None:
        known = served.forms.read(served.name, version, body)
        return known or decode_request(served.name, version, body, None, server.shared_memory.find, served.forms)
    if not (length.isascii() and length.isdigit()) or len(length) > 18:
        raise BadRequest(f"{LENGTH} = '{length[:50]}', must be the number of bytes of the JSON")
    if int(length) == 0:
        return _decode_raw(served, version, body)
    return decode_request(served.name, version, body, int(length), server.shared_memory.find)


def _decode_raw(served: ServedVersion, version: int, body: Buffer) -> InferRequest:
    if len(served.inputs) != 1:
        raise BadRequest(f"a raw request needs a model with one input; '{served.name}' has {len(served.inputs)}")
    spec = served.inputs[0]
    if served.config.max_batch_size:
        spec = spec._replace(shape=spec.shape[1:])
    return decode_raw_request(served.name, version, body, spec)
