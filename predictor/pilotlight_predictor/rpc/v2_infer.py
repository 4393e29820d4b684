"""ModelInfer and ModelStreamInfer: decode, hand to the model, encode when it answers."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final

from pilotlight.contract import HEADER_REQUEST_ID
from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.errors import Cancelled
from pilotlight_predictor.inference import InferRequest, InferResponse
from pilotlight_predictor.rpc.infer_request import decode_infer, peek_id
from pilotlight_predictor.rpc.infer_response import FINAL, encode_infer, encode_stream_error, encode_streamed
from pilotlight_predictor.rpc.service import Messages, RpcCall, Single
from pilotlight_predictor.rpc.statuses import refusal
from pilotlight_predictor.served import ServedVersion
from pilotlight_predictor.server import Server

LONG: Final = 4 << 20  # bytes; strings of that many are read in tenths of a second
MAX_AHEAD: Final = 64  # requests of one stream that are under way
MAX_ID: Final = 128  # of an id in a line of the log


async def infer(server: Server, call: RpcCall) -> bytes:
    request, response = await _infer(server, call)
    return await _joined(server, response, request.binary_output)


async def infer_streamed(server: Server, call: RpcCall) -> bytes:
    """An answer within a stream says that it is the last to its request."""
    request, response = await _infer(server, call)
    response.parameters = {**response.parameters, **FINAL}
    return await _joined(server, response, request.binary_output, streamed=True)


async def _infer(server: Server, call: RpcCall) -> tuple[InferRequest, InferResponse]:
    message = bytes(call.body)
    request = decode_infer(message) if len(message) < LONG else await server.codecs.run(lambda: decode_infer(message))
    call.params = {"model": request.model}
    served = call.served = server.find(request.model, request.version)
    if server.settings.server.compat:
        request.binary_output = True
    request.request_id = call.headers.get(HEADER_REQUEST_ID) or request.id[:MAX_ID]
    return request, await run(server, served, request)


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


async def _joined(server: Server, response: InferResponse, raw: bool, *, streamed: bool = False) -> bytes:
    """grpcio takes one piece of memory; a long one is written in a thread."""

    def join() -> bytes:
        pieces: list[Buffer] = encode_infer(response, raw)
        return b"".join(encode_streamed(pieces) if streamed else pieces)

    elements = sum(tensor.array.size for tensor in response.outputs.values())
    return await server.codecs.run(join) if elements > LONG // 4 else join()


def stream(_: Server, call: RpcCall, messages: Messages, single: Single) -> AsyncIterator[bytes]:
    """A request that fails does not end the stream."""
    return in_order(messages, lambda message: _one(call, message, single))


async def in_order(
    messages: Messages, answer: Callable[[bytes], Coroutine[Any, Any, bytes]], ahead: int = MAX_AHEAD
) -> AsyncIterator[bytes]:
    """Answers in the order of the requests, many of which may be under way."""
    under_way: asyncio.Queue[asyncio.Task[bytes] | None] = asyncio.Queue(ahead)
    reader = asyncio.ensure_future(_read(messages, answer, under_way))
    task: asyncio.Task[bytes] | None = None
    try:
        while (task := await under_way.get()) is not None:
            yield await task
        await reader
    finally:
        reader.cancel()
        for each in (task, *(under_way.get_nowait() for _ in range(under_way.qsize()))):
            if each is not None:
                each.cancel()


async def _read(
    messages: Messages,
    answer: Callable[[bytes], Coroutine[Any, Any, bytes]],
    under_way: "asyncio.Queue[asyncio.Task[bytes] | None]",
) -> None:
    try:
        async for message in messages:
            await under_way.put(asyncio.ensure_future(answer(message)))
    finally:
        await under_way.put(None)


async def _one(call: RpcCall, message: bytes, single: Single) -> bytes:
    asked = call.another()
    asked.body = message
    try:
        return await single(asked)
    except Exception as error:
        if isinstance(error, Cancelled):
            raise
        return encode_stream_error(refusal(error, asked).message, peek_id(message))
