"""One inference for a handler, between decoder and encoder of a protocol: submit, count, encode, send the response.

V2 has its own hot path in v2/infer.py.
"""

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any, Final, TypeVar

from pilotlight.contract import HEADER_REQUEST_ID
from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.core.requests import InferRequest, InferResponse
from pilotlight_predictor.errors import Cancelled, QueueFull
from pilotlight_predictor.frontends.http.messages import HttpRequest, HttpResponse
from pilotlight_predictor.frontends.http.router import ServingProtocol, error_response
from pilotlight_predictor.frontends.tasks_and_timeouts import spawn
from pilotlight_predictor.models.model_version import ModelVersion
from pilotlight_predictor.protocols.json_values import HUGE, SHORT, encoding_size
from pilotlight_predictor.protocols.triton_requests import complete_parameters
from pilotlight_predictor.server.handler_context import Server

T = TypeVar("T")
MANY: Final = 1 << 16  # elements from which text is encoded in a thread
Encode = Callable[[InferResponse], HttpResponse]
Finish = Callable[[HttpResponse], None]


def run_inference(
    server: Server, request: HttpRequest, served: ModelVersion, infer_request: InferRequest, protocol: ServingProtocol,
    encode: Encode, *, as_text: bool = False, finish: Finish | None = None,
) -> None:  # fmt: skip
    """Submit an inference; `finish` (default: the request's) gets the response later. Raise if it is rejected at once.

    `as_text`: numbers are encoded as text, so a long response of them is encoded in a thread, as one of strings is.
    """
    infer_request.request_id = request.headers.get(HEADER_REQUEST_ID, "")
    complete_parameters(infer_request, request)
    finish = finish or request.finish

    def send(response: HttpResponse) -> None:
        server.observe(served, protocol.name, response.status, perf_counter() - request.started)
        finish(response)

    def make_response(result: InferResponse | Exception) -> HttpResponse:
        if isinstance(result, Exception):
            return error_response(protocol.error_body, result, request)
        try:
            return encode(result)
        except Exception as error:
            return error_response(protocol.error_body, error, request)

    def done(result: InferResponse | Exception) -> None:
        request.on_abandon = None
        if isinstance(result, InferResponse) and is_long(result, as_text=as_text):
            spawn(send_encoded(server, result, make_response, send))
        else:
            send(make_response(result))

    server.metrics.in_flight += 1
    try:
        request.on_abandon = served.infer(infer_request, done, server.limits).cancel
    except Exception:
        server.metrics.in_flight -= 1  # the dispatcher counts rejected requests
        raise


def is_long(*responses: InferResponse | None, as_text: bool = True) -> bool:
    """Return whether encoding them would block the event loop for milliseconds."""
    size = sum(
        encoding_size(array) if datatype == "BYTES" and array.size <= MANY else array.size
        for response in responses
        if response is not None
        for datatype, array in response.outputs.values()
        if as_text or datatype == "BYTES"
    )
    return size > MANY


async def send_encoded(
    server: Server,
    result: InferResponse,
    make_response: Callable[[InferResponse | Exception], HttpResponse],
    send: Finish,
) -> None:
    """Make a long response in a thread, and send it; or an error, if its bytes do not fit the budget."""
    try:
        with server.hold(result.size):
            response = await server.codecs.run(lambda: make_response(result))
    except QueueFull as error:
        response = make_response(error)
    send(response)


def decode_and_run(
    server: Server,
    request: HttpRequest,
    decode: Callable[..., T],
    args: tuple[Any, ...],
    run: Callable[[T, Finish], None],
) -> Awaitable[HttpResponse] | None:
    """Call `run` with the decoded body and the callback for the response; a large body is decoded off the event loop.

    In the meantime the client may disconnect and the model be replaced.
    """
    if len(request.body) <= SHORT:
        run(decode(*args), request.finish)
        return None

    async def decode_then_run() -> HttpResponse:
        decoded = await decode_long(server, request.body, decode, *args)
        return await await_response(request, lambda finish: run(decoded, finish))

    return decode_then_run()


async def off_loop(server: Server, long: bool, work: Callable[[], T]) -> T:
    """Return work(), of a thread if it is long."""
    return await server.codecs.run(work) if long else work()


async def decode_long(server: Server, body: Buffer, decode: Callable[..., T], *args: Any) -> T:
    """Return decode(*args) of a long body; of a huge one from the helper process, to which all of this is sent."""
    if len(body) > HUGE:
        return await server.codecs.run_in_process(decode, *args)
    return await server.codecs.run(lambda: decode(*args))


async def await_response(request: HttpRequest, start: Callable[[Finish], None]) -> HttpResponse:
    """Start with a callback for the response and wait for it. Raise Cancelled if the client has disconnected."""
    if request.abandoned:
        raise Cancelled("the client disconnected")
    response: asyncio.Future[HttpResponse] = asyncio.get_running_loop().create_future()
    start(response.set_result)
    return await response
