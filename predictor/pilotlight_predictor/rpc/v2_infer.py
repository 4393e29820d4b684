"""ModelInfer and ModelStreamInfer: decode, hand to the model, encode when it answers.

A model that is quick enough for the event loop has answered before anything here would wait: then no future is made,
and no other task has its turn between request and answer.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import nullcontext
from typing import Final

from pilotlight.contract import HEADER_REQUEST_ID
from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.errors import Cancelled, Unsupported
from pilotlight_predictor.inference import InferRequest, InferResponse
from pilotlight_predictor.rpc.answering import Outlet, in_order
from pilotlight_predictor.rpc.infer_head import EMPTY_FINAL
from pilotlight_predictor.rpc.infer_request import decode_infer, peek_id
from pilotlight_predictor.rpc.infer_response import FINAL, encode_infer, encode_stream_error, encode_streamed
from pilotlight_predictor.rpc.service import Messages, RpcCall, Single
from pilotlight_predictor.rpc.statuses import refusal
from pilotlight_predictor.served import ServedVersion
from pilotlight_predictor.server import Server
from pilotlight_predictor.streaming import Reading

LONG: Final = 4 << 20  # bytes; strings of that many are read in tenths of a second
MAX_AHEAD: Final = 64  # requests of one stream that are under way
MAX_ID: Final = 128  # of an id in a line of the log


def infer(server: Server, call: RpcCall) -> bytes | Awaitable[bytes]:
    if len(call.body) >= LONG:
        return _infer_long(server, call)
    request = decode_infer(call.body, server.shared_memory.find)
    served = _found_single(server, call, request)
    answer = served.infer_now(request, server.limits)
    if answer is None:
        return _infer_later(server, served, request)
    if isinstance(answer, Exception):
        raise answer
    if _is_long(answer):
        return _joined(server, answer, request.binary_output)
    return b"".join(encode_infer(answer, request.binary_output))


async def _infer_later(server: Server, served: ServedVersion, request: InferRequest) -> bytes:
    return await _joined(server, await run(server, served, request), request.binary_output)


async def _infer_long(server: Server, call: RpcCall) -> bytes:
    request = await _decoded_long(server, call)
    return await _infer_later(server, _found_single(server, call, request), request)


def _found_single(server: Server, call: RpcCall, request: InferRequest) -> ServedVersion:
    served = _found(server, call, request)
    if served.decoupled:
        raise Unsupported("ModelInfer RPC doesn't support models with decoupled transaction policy")
    if request.parameters:
        request.parameters.pop(EMPTY_FINAL, None)
    return served


async def infer_streamed(server: Server, call: RpcCall) -> bytes:
    """Every answer within a stream says whether it is the last to its request; this gives the last."""
    async with call.outlet.turn if call.outlet is not None else nullcontext():
        request, served = await _asked(server, call)
    empty_final = request.parameters.pop(EMPTY_FINAL, False) is True
    if not served.decoupled or call.outlet is None:
        return await _streamed(server, request, await run(server, served, request), final=True)
    call.outlet.leave_order()
    server.metrics.in_flight += 1
    try:
        return await _in_parts(server, served, request, call, empty_final)
    finally:
        server.metrics.in_flight -= 1


async def _in_parts(
    server: Server, served: ServedVersion, request: InferRequest, call: RpcCall, empty_final: bool
) -> bytes:
    """Writes all answers but the last, and gives that. A final one without outputs is for those who asked for it."""
    assert call.outlet is not None
    async with Reading(lambda asked, part: served.stream(asked, part, server.limits), request) as answers:
        async for result, final in answers:
            if final and isinstance(result, Exception):
                raise result
            if isinstance(result, Exception):
                await call.outlet.write(encode_stream_error(refusal(result, call).message, request.id))
            elif not final:
                await call.outlet.write(await _streamed(server, request, result, final=False))
            elif result.outputs or result.parameters or empty_final:
                return await _streamed(server, request, result, final=True)
    return b""


async def _asked(server: Server, call: RpcCall) -> tuple[InferRequest, ServedVersion]:
    if len(call.body) < LONG:
        request = decode_infer(call.body, server.shared_memory.find)
    else:
        request = await _decoded_long(server, call)
    return request, _found(server, call, request)


async def _decoded_long(server: Server, call: RpcCall) -> InferRequest:
    """A thread that has begun reads to the end, and holds the message until then."""
    message, find, begun = call.body, server.shared_memory.find, False

    def read() -> InferRequest:
        nonlocal begun
        begun = True
        return decode_infer(message, find)

    reading = asyncio.ensure_future(server.codecs.run(read))
    try:
        return await asyncio.shield(reading)
    except asyncio.CancelledError:
        if begun:
            call.lasts = reading
        else:
            reading.cancel()
        raise


def _found(server: Server, call: RpcCall, request: InferRequest) -> ServedVersion:
    call.params = {"model": request.model}
    served = call.served = server.find(request.model, request.version)
    if server.settings.server.compat:
        request.binary_output = True
    request.request_id = call.headers.get(HEADER_REQUEST_ID) or request.id[:MAX_ID]
    return served


async def run(server: Server, served: ServedVersion, request: InferRequest) -> InferResponse:
    """A call that is cancelled, by its client or its deadline, gives its place back."""
    answered: asyncio.Future[InferResponse | Exception] = asyncio.get_running_loop().create_future()

    def done(result: InferResponse | Exception) -> None:
        if not answered.done():
            answered.set_result(result)

    server.metrics.in_flight += 1
    try:
        ticket = served.infer(request, done, server.limits)
        try:
            result = await answered
        except asyncio.CancelledError:
            ticket.cancel()
            raise
    finally:
        server.metrics.in_flight -= 1
    if isinstance(result, Exception):
        raise result
    return result


async def _streamed(server: Server, request: InferRequest, response: InferResponse, *, final: bool) -> bytes:
    response.parameters = {**response.parameters, FINAL: final}
    return await _joined(server, response, request.binary_output, streamed=True)


async def _joined(server: Server, response: InferResponse, raw: bool, *, streamed: bool = False) -> bytes:
    if _is_long(response):
        return await server.codecs.run(lambda: _join(response, raw, streamed=streamed))
    return _join(response, raw, streamed=streamed)


def _is_long(response: InferResponse) -> bool:
    """Whether it is written in a thread."""
    return sum(tensor.array.size for tensor in response.outputs.values()) > LONG // 4


def _join(response: InferResponse, raw: bool, *, streamed: bool = False) -> bytes:
    """As one piece of memory."""
    pieces: list[Buffer] = encode_infer(response, raw)
    return b"".join(encode_streamed(pieces) if streamed else pieces)


def stream(_: Server, call: RpcCall, messages: Messages, single: Single) -> AsyncIterator[bytes]:
    """A request that fails does not end the stream."""
    return in_order(messages, lambda message, outlet: _one(call, message, single, outlet), MAX_AHEAD)


async def _one(call: RpcCall, message: Buffer, single: Single, outlet: Outlet) -> bytes:
    asked = call.another()
    asked.body, asked.outlet = message, outlet
    try:
        return await single(asked)
    except Exception as error:
        if isinstance(error, Cancelled):
            raise
        return encode_stream_error(refusal(error, asked).message, peek_id(message))
