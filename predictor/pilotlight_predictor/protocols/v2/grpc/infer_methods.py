"""ModelInfer and ModelStreamInfer: decode, run the model, encode.

A model that runs on the event loop responds synchronously: no future is created and no task switch happens.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import nullcontext
from typing import Final

from pilotlight.contract import HEADER_REQUEST_ID
from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.config import Limits
from pilotlight_predictor.core.requests import InferRequest, InferResponse
from pilotlight_predictor.errors import BadRequest, Cancelled, Unsupported
from pilotlight_predictor.frontends.grpc.dispatcher import GrpcRequest, Messages, UnaryCall, grpc_error
from pilotlight_predictor.frontends.grpc.ordered_stream import OrderedResponseWriter, in_request_order
from pilotlight_predictor.models.model_version import ModelVersion
from pilotlight_predictor.protocols.json_values import encoding_size
from pilotlight_predictor.protocols.run_inference import MANY
from pilotlight_predictor.protocols.triton_requests import complete_parameters
from pilotlight_predictor.protocols.v2.grpc.infer_request import (
    EMPTY_FINAL,
    ID_FIELD,
    MODEL_FIELD,
    Head,
    decode_infer,
    is_plain,
    peek_text,
)
from pilotlight_predictor.protocols.v2.grpc.infer_response import (
    FINAL,
    encode_infer,
    encode_stream_error,
    encode_streamed,
)
from pilotlight_predictor.scheduling.streaming import ResponseReader
from pilotlight_predictor.server.handler_context import Server

LONG: Final = 1 << 16  # bytes from which typed contents and strings are decoded in a thread: 5 ms
LONG_RAW: Final = 1 << 20  # elements from which a response is encoded in a thread
MAX_AHEAD: Final = 64  # requests in flight of one stream
MAX_ID: Final = 128  # characters of an id in the log


def infer(server: Server, request: GrpcRequest) -> bytes | Awaitable[bytes]:
    if len(request.body) >= LONG and not is_plain(request.body):
        return _infer_later(server, request)
    infer_request = _decode(server, request)
    served = _find_unary(server, request, infer_request)
    result = served.infer_inline(infer_request, server.limits)
    if result is None:
        return _infer_queued(server, served, infer_request)
    if isinstance(result, Exception):
        raise result
    if _is_long(result, infer_request.binary_output):
        return _encode(server, result, infer_request.binary_output)
    return b"".join(encode_infer(result, infer_request.binary_output))


async def _infer_later(server: Server, request: GrpcRequest) -> bytes:
    infer_request = await _decode_long(server, request)
    return await _infer_queued(server, _find_unary(server, request, infer_request), infer_request)


async def _infer_queued(server: Server, served: ModelVersion, infer_request: InferRequest) -> bytes:
    return await _encode(server, await run(server, served, infer_request), infer_request.binary_output)


def _find_unary(server: Server, request: GrpcRequest, infer_request: InferRequest) -> ModelVersion:
    served = _find(server, request, infer_request)
    if served.decoupled:
        raise Unsupported("ModelInfer RPC doesn't support models with decoupled transaction policy")
    if infer_request.parameters:
        infer_request.parameters.pop(EMPTY_FINAL, None)
    return served


async def infer_streamed(server: Server, request: GrpcRequest) -> bytes:
    """Run one request of a stream and return its last response; every response says whether it is final."""
    async with request.writer.read_lock if request.writer is not None else nullcontext():
        if len(request.body) < LONG or is_plain(request.body):
            infer_request = _decode(server, request)
        else:
            infer_request = await _decode_long(server, request)
        served = _find(server, request, infer_request)
    empty_final = infer_request.parameters.pop(EMPTY_FINAL, False) is True
    if not served.decoupled or request.writer is None:
        return await _encode_streamed_response(
            server, infer_request, await run(server, served, infer_request), final=True
        )
    request.writer.leave_order()
    server.metrics.in_flight += 1
    try:
        return await _write_parts(server, served, infer_request, request, empty_final)
    finally:
        server.metrics.in_flight -= 1


async def _write_parts(
    server: Server, served: ModelVersion, infer_request: InferRequest, request: GrpcRequest, empty_final: bool
) -> bytes:
    """Write all responses but the last and return that one. An empty final response is sent only on request."""
    assert request.writer is not None
    async with ResponseReader(
        lambda each, deliver: served.stream(each, deliver, server.limits), infer_request
    ) as responses:
        async for _, result, final in responses:
            if final and isinstance(result, Exception):
                raise result
            if isinstance(result, Exception):
                await request.writer.write(encode_stream_error(grpc_error(result, request).message, infer_request.id))
            elif not final:
                await request.writer.write(await _encode_streamed_response(server, infer_request, result, final=False))
            elif result.outputs or result.parameters or empty_final:
                return await _encode_streamed_response(server, infer_request, result, final=True)
    return b""


def _decode(server: Server, request: GrpcRequest) -> InferRequest:
    try:
        return decode_infer(request.body, server.shared_memory.find)
    except BadRequest:
        if request.as_triton:  # its errors name the model
            request.params = {"model": peek_text(request.body, MODEL_FIELD)}
        raise


async def _decode_long(server: Server, request: GrpcRequest) -> InferRequest:
    """Decode in a thread. A started thread cannot be cancelled and holds the message until it ends."""
    message, find, begun = request.body, server.shared_memory.find, False

    def check(head: Head) -> None:
        served = server.find(head.model, head.version)
        for each in head.inputs:
            served.check_input(each.name, each.datatype, each.shape)

    def decode() -> InferRequest:
        nonlocal begun
        begun = True
        return decode_infer(message, find, check)

    decoding = asyncio.ensure_future(server.codecs.run(decode))
    try:
        return await asyncio.shield(decoding)
    except asyncio.CancelledError:
        if begun:
            request.pending_thread = decoding
        else:
            decoding.cancel()
        raise


def _find(server: Server, request: GrpcRequest, infer_request: InferRequest) -> ModelVersion:
    request.params = {"model": infer_request.model}
    served = request.served = server.find(infer_request.model, infer_request.version)
    if server.settings.server.compat:
        infer_request.binary_output = True
    infer_request.request_id = request.headers.get(HEADER_REQUEST_ID) or infer_request.id[:MAX_ID]
    complete_parameters(infer_request, request)
    return served


async def run(
    server: Server, served: ModelVersion, infer_request: InferRequest, limits: Limits | None = None
) -> InferResponse:
    """Run one inference, with the server's limits by default; cancelling the task removes it from the queue."""
    future: asyncio.Future[InferResponse | Exception] = asyncio.get_running_loop().create_future()

    def done(result: InferResponse | Exception) -> None:
        if not future.done():
            future.set_result(result)

    server.metrics.in_flight += 1
    try:
        ticket = served.infer(infer_request, done, limits or server.limits)
        try:
            result = await future
        except asyncio.CancelledError:
            ticket.cancel()
            raise
    finally:
        server.metrics.in_flight -= 1
    if isinstance(result, Exception):
        raise result
    return result


async def _encode_streamed_response(
    server: Server, infer_request: InferRequest, response: InferResponse, *, final: bool
) -> bytes:
    response.parameters = {**response.parameters, FINAL: final}
    return await _encode(server, response, infer_request.binary_output, streamed=True)


async def _encode(server: Server, response: InferResponse, raw: bool, *, streamed: bool = False) -> bytes:
    def encode() -> bytes:
        pieces: list[Buffer] = encode_infer(response, raw)
        return b"".join(encode_streamed(pieces) if streamed else pieces)

    if not _is_long(response, raw):
        return encode()
    with server.hold(0 if raw else response.size):  # raw bytes are only copied, so that few wait for it
        return await server.codecs.run(encode)


def _is_long(response: InferResponse, raw: bool) -> bool:
    """Return whether to encode the response in a thread."""
    for datatype, array in response.outputs.values():
        if array.size > (LONG_RAW if raw and datatype != "BYTES" else MANY):
            return True
        if datatype == "BYTES" and encoding_size(array) > MANY:
            return True
    return False


def stream(_: Server, request: GrpcRequest, messages: Messages, call_unary: UnaryCall) -> AsyncIterator[bytes]:
    """Respond in order; a failed request does not end the stream."""

    async def respond(message: Buffer, writer: OrderedResponseWriter) -> bytes:
        part = request.next_message()
        part.body, part.writer = message, writer
        try:
            return await call_unary(part)
        except Cancelled:
            raise
        except Exception as error:
            return encode_stream_error(grpc_error(error, part).message, peek_text(message, ID_FIELD))

    return in_request_order(messages, respond, MAX_AHEAD)
