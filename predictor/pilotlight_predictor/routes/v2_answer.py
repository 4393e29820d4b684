"""Response to one V2 inference: encode, compress, count and send.

Called when the model has responded to a single request, or to a batch that cannot be encoded as one.
"""

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import Final

from pilotlight.contract import HEADER_INFERENCE_LENGTH
from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.calls import JSON, HttpRequest, HttpResponse, json_response
from pilotlight_predictor.dispatch import error_response
from pilotlight_predictor.errors import PredictorError
from pilotlight_predictor.inference import InferRequest, InferResponse
from pilotlight_predictor.protocol.compression import choose_encoding, compress
from pilotlight_predictor.protocol.v2_response import encode_response, is_long
from pilotlight_predictor.served import ModelVersion
from pilotlight_predictor.server import Server

BINARY: Final = "application/octet-stream"
LENGTH: Final = HEADER_INFERENCE_LENGTH.title()  # for clients that compare names case-sensitively
MAX_ID: Final = 128  # characters of an id in the log
_ENCODING: Final[set[asyncio.Task[None]]] = set()  # the loop holds tasks only weakly

Finish = Callable[[HttpResponse], None]


def error_body(error: PredictorError) -> HttpResponse:
    """Return the error body; messages may quote invalid Unicode of the client."""
    return json_response({"error": str(error).encode("utf-8", "replace").decode()}, error.status)


def respond(
    server: Server,
    request: HttpRequest,
    served: ModelVersion,
    infer_request: InferRequest,
    finish: Finish,
    result: InferResponse | Exception,
) -> None:
    """Send the response, now or after encoding a long one in a thread."""
    request.on_abandon = None
    if isinstance(result, InferResponse) and is_long(infer_request, result, "accept-encoding" in request.headers):
        task = asyncio.get_running_loop().create_task(
            _encode_long(server, request, served, infer_request, result, finish)
        )
        _ENCODING.add(task)
        task.add_done_callback(_ENCODING.discard)
        return
    response = _make_response(request, infer_request, result)
    server.observe(served, "v2", response.status, perf_counter() - request.started)
    finish(response)


async def _encode_long(
    server: Server,
    request: HttpRequest,
    served: ModelVersion,
    infer_request: InferRequest,
    result: InferResponse,
    finish: Finish,
) -> None:
    response = await server.codecs.run(lambda: _make_response(request, infer_request, result))
    server.observe(served, "v2", response.status, perf_counter() - request.started)
    finish(response)


def _make_response(
    request: HttpRequest, infer_request: InferRequest, result: InferResponse | Exception
) -> HttpResponse:
    if isinstance(result, Exception):
        return error_response(error_body, result, request)
    try:
        header_length, pieces = encode_response(infer_request, result)
        accept = request.headers.get("accept-encoding")
        if header_length is None and not accept:
            return HttpResponse(200, pieces)
        return binary_or_compressed(accept or "", header_length, pieces)
    except Exception as error:  # such as output names that are not valid Unicode
        return error_response(error_body, error, request)


def binary_or_compressed(accept: str, header_length: int | None, pieces: list[Buffer]) -> HttpResponse:
    """Return a response with binary tensors or compression, and the headers that announce them."""
    headers = {} if header_length is None else {LENGTH: str(header_length)}
    if accept:
        pieces = _compressed(accept, pieces, headers)
    return HttpResponse(200, pieces, JSON if header_length is None else BINARY, headers or None)


def _compressed(accept: str, pieces: list[Buffer], headers: dict[str, str]) -> list[Buffer]:
    encoding = choose_encoding(accept)
    compressed = compress(pieces, encoding) if encoding else None
    if compressed is None:
        return pieces
    headers["Content-Encoding"] = encoding or ""
    headers["Vary"] = "Accept-Encoding"
    return compressed
