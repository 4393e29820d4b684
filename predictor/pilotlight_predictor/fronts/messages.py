"""Messages between a front and the model process: requests and answers, without the bytes of their larger tensors.

    front → model process   Submit, Cancel, Pause, Release
    model process → front   Welcome, Answer, Failure

Every Submit gets exactly one final Answer or Failure, also after a Cancel.
"""

from collections.abc import Sequence
from struct import Struct as Packing
from typing import Any, Final

import msgspec
from msgspec import Struct

from pilotlight_predictor import errors
from pilotlight_predictor.core.generation_params import BadField
from pilotlight_predictor.core.requests import (
    InferRequest,
    Layout,
    Outputs,
    OutputsWithParameters,
    RequestedOutput,
    SequencePoint,
)
from pilotlight_predictor.core.tensors import JsonText, Tensor, decode_raw, encode_raw
from pilotlight_predictor.observability.logs import log
from pilotlight_predictor.scheduling.queue import QueuedRequest

LENGTH: Final = Packing("<I")
JSON_TEXT: Final = "JSON"  # BYTES whose elements are JSON text


class Place(Struct, array_like=True):
    """A tensor: its bytes, or where they lie in the sender's block."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    raw: bytes | None = None
    offset: int = 0
    size: int = 0


class Submit(Struct, array_like=True, tag=0):
    number: int
    model: str
    version: int
    loaded: int  # the load of the version that the request was validated for
    rows: int
    signature: bytes | None
    inputs: list[Place] | None
    streams: bool  # any number of answers
    id: str
    outputs: list[str]
    parameters: dict[str, Any]
    priority: int
    timeout_us: int
    request_id: str
    verb: str
    document: Any = None
    sequence: tuple[int | str, bool, bool] | None = None


class Cancel(Struct, array_like=True, tag=1):
    number: int


class Pause(Struct, array_like=True, tag=2):
    number: int
    paused: bool


class Release(Struct, array_like=True, tag=3):
    """The block of an answer was read."""

    offset: int


class Welcome(Struct, array_like=True, tag=4):
    """The model process has the front's memory and answers from now on."""

    pid: int


class Answer(Struct, array_like=True, tag=5):
    number: int
    final: bool
    outputs: list[Place]
    parameters: dict[str, Any] | None
    block: int = -1
    layout: Layout | None = None


class Failure(Struct, array_like=True, tag=6):
    number: int
    final: bool
    error: str  # name of a class of errors.py
    message: str
    request_id: str = ""
    retry_after: int | None = None
    field: str = ""  # of the request, of a BadField


Message = Submit | Cancel | Pause | Release | Welcome | Answer | Failure
encode: Final = msgspec.msgpack.Encoder().encode
decode: Final = msgspec.msgpack.Decoder(Message).decode


def submit_of(number: int, item: QueuedRequest, loaded: int, version: int, inputs: list[Place] | None) -> Submit:
    request, sequence = item.request, item.request.sequence
    return Submit(
        number, request.model, version, loaded, item.rows,
        None if item.signature is None else encode(item.signature), inputs, item.part is not None, request.id,
        [output.name for output in request.outputs], request.parameters, request.priority, request.timeout_us,
        request.request_id, request.verb, request.document,
        None if sequence is None else (sequence.id, sequence.start, sequence.end),
    )  # fmt: skip


def request_of(message: Submit, tensors: dict[str, Tensor]) -> InferRequest:
    """Return the request as the model's executor takes it: validated, and with all that a model may read."""
    request = InferRequest(
        message.model, tensors, message.version, message.id, tuple(map(RequestedOutput, message.outputs)),
        message.parameters, False, message.priority, message.timeout_us, message.request_id,
    )  # fmt: skip
    request.document, request.verb = message.document, message.verb
    if message.sequence is not None:
        request.sequence = SequencePoint(*message.sequence)
    return request


def failure_of(number: int, final: bool, error: Exception) -> Failure:
    """Return the error for the front, as the nearest class that it knows; of an unexpected one, only that it was."""
    if not isinstance(error, errors.PredictorError):
        log("request.failed", "unexpected error", level="ERROR", error=error)
        error = errors.PredictorError("internal error; see the server's log")
    known = next(cls for cls in type(error).__mro__ if cls.__module__ == errors.__name__)
    field = error.field if isinstance(error, BadField) else ""
    return Failure(number, final, known.__name__, str(error), error.request_id, error.retry_after, field)


def error_of(message: Failure) -> errors.PredictorError:
    cls = getattr(errors, message.error)
    error: errors.PredictorError = cls.__new__(cls)
    error.args = (message.message,)
    if message.field:
        error = BadField(message.field, message.message)
    error.request_id = message.request_id
    if message.retry_after is not None:
        error.retry_after = message.retry_after
    return error


def datatype_of(tensor: Tensor) -> str:
    """Return the datatype; BYTES of JSON text have one of their own."""
    datatype, array = tensor
    is_json = datatype == "BYTES" and array.size and all(isinstance(item, JsonText) for item in array.flat)
    return JSON_TEXT if is_json else datatype


def tensors_of(places: Sequence[Place], memory: memoryview) -> dict[str, Tensor]:
    """Return tensors that read the message's bytes, or the sender's memory, in place."""
    tensors = {}
    for place in places:
        raw = memory[place.offset : place.offset + place.size] if place.raw is None else place.raw
        datatype = "BYTES" if place.datatype == JSON_TEXT else place.datatype
        tensor = decode_raw(place.name, datatype, place.shape, raw)
        if place.datatype == JSON_TEXT:
            for index, item in enumerate(tensor.array.flat):
                tensor.array.flat[index] = JsonText(item)
        tensors[place.name] = tensor
    return tensors


def outputs_of(message: Answer, memory: memoryview) -> Outputs:
    tensors = tensors_of(message.outputs, memory)
    if message.parameters is None:
        return tensors
    return OutputsWithParameters(tensors, message.parameters, message.layout)


def raw_of(tensors: dict[str, Tensor]) -> list[tuple[str, str, tuple[int, ...], memoryview | bytes]]:
    return [(name, datatype_of(tensor), tensor.array.shape, encode_raw(tensor)) for name, tensor in tensors.items()]
