"""Triton's generate extension: POST …/generate and …/generate_stream, JSON with the model's tensor names.

    {"text_input": "hi", "max_tokens": 5, "parameters": {"stream": true}}     keys that name inputs become tensors,
    {"model_name": "m", "model_version": "1", "text_output": "hello"}         all others parameters of the request

A scalar is a tensor of one element. For a batching model, a flat list is as many rows as its elements fill, and any
other value a batch of one. An output of one element is a scalar, any other a flat list.
"""

from collections import Counter
from collections.abc import Awaitable, Collection, Mapping, Sequence
from itertools import count
from math import prod
from time import perf_counter
from typing import Any, Final

import msgspec
import numpy as np

from pilotlight.contract import HEADER_REQUEST_ID
from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.core.requests import InferRequest, InferResponse, Inputs, Parameters
from pilotlight_predictor.core.tensors import Tensor, TensorSpec
from pilotlight_predictor.errors import BadRequest
from pilotlight_predictor.frontends.auth import Action
from pilotlight_predictor.frontends.http.messages import HttpRequest, HttpResponse
from pilotlight_predictor.frontends.http.router import ServingProtocol, error_response, model_routes
from pilotlight_predictor.models.model_version import ModelVersion
from pilotlight_predictor.protocols.json_values import MAX_FIELDS, SHORT, dump_json, quote_nonfinite
from pilotlight_predictor.protocols.run_inference import (
    Finish,
    decode_and_run,
    decode_long,
    is_long,
    off_loop,
    run_inference,
)
from pilotlight_predictor.protocols.triton_requests import complete_parameters
from pilotlight_predictor.protocols.v1_codec import read_document, tensor_pieces, to_tensor
from pilotlight_predictor.protocols.v2.infer import version_of
from pilotlight_predictor.protocols.v2.infer_response import error_body
from pilotlight_predictor.protocols.v2.request_codec import apply_parameters
from pilotlight_predictor.scheduling.streaming import ResponseReader
from pilotlight_predictor.server.handler_context import Server

NAME: Final = "generate"
EVENTS: Final = "text/event-stream; charset=utf-8"
ID: Final = "id"
PARAMETERS: Final = "parameters"


def decode_generate(model: str, version: int, body: Buffer, specs: Sequence[TensorSpec], batched: bool) -> InferRequest:
    """Decode a body; `specs` are the model's inputs, with the batch dimension first if it is `batched`."""
    document = read_document(body, 'its keys are input names, such as {"text_input": "hi"}')
    nested = document.get(PARAMETERS)
    if len(document) > MAX_FIELDS or (isinstance(nested, dict) and len(nested) > MAX_FIELDS):
        raise _too_many()
    identity = document.pop(ID, "")
    if isinstance(identity, bool) or not isinstance(identity, str | int):
        raise BadRequest("id must be a string or a number")
    known = {spec.name: spec for spec in specs}
    _check_repeated(body, known)
    request = InferRequest(model, {}, version, str(identity))
    if isinstance(nested, dict):
        del document[PARAMETERS]
    parameters: Parameters = {}
    _sort_fields(document, "", known, batched, request.inputs, parameters)
    if isinstance(nested, dict):
        _sort_fields(nested, f"{PARAMETERS}.", known, batched, request.inputs, parameters)
    apply_parameters(request, parameters, reserved=False)  # a name with triton_ is one of the caller's, as in Triton
    return request


class _Key:
    """Key of a field; each is equal only to itself, so that a decoder keeps fields that repeat a name."""

    def __init__(self, name: str) -> None:
        self.name = name


def _check_repeated(body: Buffer, known: Collection[str]) -> None:
    """Raise BadRequest for a body, or its parameters, that name an input twice: a decoder reports only the last."""
    text = bytes(body)
    escaped = b"\\u" in text or b"\\/" in text
    if not escaped and all(text.count(dump_json(name)) < 2 for name in known):
        return  # only a body that may repeat a name is decoded a second time
    fields = _fields(text)
    nested = [bytes(value) for name, value in fields if name == PARAMETERS]
    objects = (fields, [field for value in nested if value.startswith(b"{") for field in _fields(value)])
    for where, pairs in zip(("", f"{PARAMETERS}."), objects, strict=True):
        names = Counter(name for name, _ in pairs)
        for name in known:
            if names[name] > 1:
                raise BadRequest(f"{where}{name} is set twice, name each input once")


def _fields(text: bytes) -> list[tuple[str, msgspec.Raw]]:
    """Return the fields of a valid JSON object, also those that repeat a name. Raise BadRequest for too many."""
    left = count(MAX_FIELDS, -1)

    def key(_: type, name: str) -> _Key:
        if not next(left):
            raise _too_many()
        return _Key(name)

    try:
        fields = msgspec.json.decode(text, type=dict[_Key, msgspec.Raw], dec_hook=key)
    except RecursionError:
        raise BadRequest("the request is nested too deep") from None
    except msgspec.DecodeError:
        return _fields(quote_nonfinite(text) or b"{}")
    return [(key.name, value) for key, value in fields.items()]


def _too_many() -> BadRequest:
    return BadRequest(f"the body has more than {MAX_FIELDS} fields, which are inputs and parameters; send fewer")


def _sort_fields(
    fields: Mapping[str, Any],
    where: str,
    known: Mapping[str, TensorSpec],
    batched: bool,
    inputs: Inputs,
    parameters: Parameters,
) -> None:
    for key, value in fields.items():
        if key in inputs or key in parameters:
            raise BadRequest(f"{where}{key} is set twice, in the body and in its parameters")
        if key in known:
            inputs[key] = _tensor(f"{where}{key}", known[key], value, batched)
        elif isinstance(value, str | int | float | bool):
            parameters[key] = value
        else:
            kind = "null" if value is None else "a list" if isinstance(value, list) else "an object"
            raise BadRequest(f"{where}{key} is {kind}, must be text, a number, true or false: it is not an input")


def _tensor(where: str, spec: TensorSpec, value: Any, batched: bool) -> Tensor:
    tensor, rank = to_tensor(where, spec.datatype, value), len(spec.shape)
    array, row = tensor.array, spec.shape[1:]
    if array.ndim == 0:
        array = array.reshape((1,) * rank)
    elif batched and array.ndim == 1 and -1 not in row and array.size and array.size % prod(row) == 0:
        array = array.reshape(-1, *row)  # a flat list of several rows
    elif batched and array.ndim == rank - 1:
        array = array[np.newaxis]
    return Tensor(tensor.datatype, array)


def encode_generate(response: InferResponse) -> bytes:
    document: dict[str, Any] = {ID: response.id} if response.id else {}
    document |= {"model_name": response.model, "model_version": str(response.version), **response.parameters}
    document = {key: value for key, value in document.items() if key not in response.outputs}
    pieces = [dump_json(document)[:-1]]
    for name, (datatype, array) in response.outputs.items():
        pieces.append(b",%b:" % dump_json(name))
        pieces.extend(tensor_pieces(Tensor(datatype, array.reshape(() if array.size == 1 else (-1,)))))
    return b"".join([*pieces, b"}"])


def generate(server: Server, request: HttpRequest) -> Awaitable[HttpResponse] | None:
    def encode(response: InferResponse) -> HttpResponse:
        return HttpResponse(200, [encode_generate(response)])

    def run(infer_request: InferRequest, finish: Finish) -> None:
        served = server.find(infer_request.model, infer_request.version)
        run_inference(server, request, served, infer_request, PROTOCOL, encode, as_text=True, finish=finish)

    return decode_and_run(server, request, decode_generate, _arguments(server, request), run)


async def generate_stream(server: Server, request: HttpRequest) -> HttpResponse:
    arguments = _arguments(server, request)
    if len(request.body) > SHORT:
        infer_request = await decode_long(server, request.body, decode_generate, *arguments)
    else:
        infer_request = decode_generate(*arguments)
    infer_request.request_id = request.headers.get(HEADER_REQUEST_ID, "")
    complete_parameters(infer_request, request)
    served = server.find(infer_request.model, infer_request.version)
    return await GenerateEvents(server, request, served, infer_request).respond()


def _arguments(server: Server, request: HttpRequest) -> tuple[Any, ...]:
    version = version_of(request)
    served = server.find(request.params["model"], version)
    return served.name, version, request.body, served.inputs, served.config.max_batch_size > 0


class GenerateEvents:
    """Body of a stream of server-sent events, which ends with the last response or when the client disconnects.

    The first is awaited before the headers are sent, so that a rejected request gets its own status; later errors are
    events.
    """

    def __init__(self, server: Server, request: HttpRequest, served: ModelVersion, infer_request: InferRequest) -> None:
        self._server, self._request, self._served = server, request, served
        self._responses = ResponseReader(
            lambda each, deliver: served.stream(each, deliver, server.limits), infer_request
        )
        self._first = b""
        self._counted = False

    async def respond(self) -> HttpResponse:
        self._server.metrics.in_flight += 1
        self._request.on_abandon = self._responses.cancel
        try:
            _, result, final = await anext(self._responses)
            if isinstance(result, Exception):
                try:
                    raise result
                finally:
                    del result  # the traceback refers to this frame
            self._first = await _event(self._server, result)
        except BaseException:
            self._responses.cancel()
            self._request.on_abandon = None
            self._server.metrics.in_flight -= 1  # the dispatcher counts rejected requests
            raise
        if final:
            self._end(200)
        return HttpResponse(200, self, EVENTS, {"Cache-Control": "no-cache"})

    def __aiter__(self) -> "GenerateEvents":
        return self

    async def __anext__(self) -> bytes:
        event, self._first = self._first, b""
        while not event:
            _, result, final = await anext(self._responses)
            status = 200
            if isinstance(result, Exception):
                response = error_response(error_body, result, self._request)
                status = response.status
                assert isinstance(response.body, list)
                event = b"data: %b\n\n" % b"".join(map(bytes, response.body))
            else:
                event = await _event(self._server, result)
            if final:
                self._end(status)
        return event

    async def aclose(self) -> None:
        self._responses.cancel()
        self._end(499)

    def _end(self, status: int) -> None:
        """Count the request once."""
        if not self._counted:
            self._counted = True
            self._request.on_abandon = None
            self._server.observe(self._served, NAME, status, perf_counter() - self._request.started)


async def _event(server: Server, response: InferResponse) -> bytes:
    """Return the event; empty for a final response without outputs."""
    if not response.outputs and not response.parameters:
        return b""
    return await off_loop(server, is_long(response), lambda: b"data: %b\n\n" % encode_generate(response))


PROTOCOL = ServingProtocol(
    NAME,
    (
        *model_routes("/v2", "/generate", "POST", generate, Action.INFER),
        *model_routes("/v2", "/generate_stream", "POST", generate_stream, Action.INFER),
    ),
    error_body,
)
