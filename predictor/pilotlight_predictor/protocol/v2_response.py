"""InferResponse → V2 JSON, or JSON with binary tensors behind it."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final

import numpy as np

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.inference import InferRequest, InferResponse
from pilotlight_predictor.protocol.pieces import LONG_ARRAY, dumped, write_pieces
from pilotlight_predictor.protocol.raw import encode_raw
from pilotlight_predictor.protocol.shared_places import told_place
from pilotlight_predictor.protocol.values import encode_values
from pilotlight_predictor.tensors import Array, Shape, Tensor

LONG_TO_PACK: Final = 1 << 15  # elements: packed in a millisecond
_UNLIKE_NUMPY: Final = frozenset({"BYTES", "BF16"})
_NAMES: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def encode_response(request: InferRequest, response: InferResponse) -> tuple[int | None, list[Buffer]]:
    """The length of the JSON where blobs follow it (else None), and the pieces of the body in order."""
    texts: list[Buffer] = [_opening(response)]
    blobs: list[Buffer] = []
    elsewhere, long = bool(request.binary_output or request.outputs or response.placed), False
    for name, tensor in response.outputs.items():
        if len(texts) > 1:
            texts.append(b",")
        if elsewhere and (text := _elsewhere(request, response, name, blobs)) is not None:
            texts.append(text)
            continue
        data = _data(name, tensor)
        long = long or len(data) > 1
        texts.append(_before_data(name, tensor.datatype, tensor.array.shape))
        texts.extend(data)
        texts.append(b"}")
    texts.append(b"]}")
    if not long:
        texts = [b"".join(texts)]
    return (sum(map(len, texts)) if blobs and any(blobs) else None), [*texts, *blobs]


def encode_rows(response: InferResponse, rows: Sequence[int]) -> list[bytes] | None:
    """The bodies of all answers to a batch, as `encode_response` writes them one by one: each has its own rows of the
    response's outputs, as many as `rows` says. None where they have to be written so."""
    columns: list[list[bytes]] = []
    before, last = _opening(response), len(response.outputs) - 1
    for name, tensor in response.outputs.items():
        lines = _lines(tensor)
        if lines is None:
            return None
        columns.append(_column(before, name, tensor, lines, rows, b"]}" if len(columns) < last else b"]}]}"))
        before = b","
    if len(columns) == 1:
        return columns[0]
    return [b"".join(texts) for texts in zip(*columns, strict=True)] or None


def with_id(body: bytes, identity: str) -> bytes:
    """The body of an answer to a request with an id, from that of one without."""
    return b'{"id":%b,%b' % (dumped(identity), body[1:])


def _lines(tensor: Tensor) -> list[bytes] | None:
    """The numbers of each row, written by one call for all of them."""
    datatype, array = tensor
    if datatype in _UNLIKE_NUMPY or not 0 < array.size <= LONG_TO_PACK:
        return None
    text = dumped(np.ascontiguousarray(array).reshape(len(array), -1))
    return None if b"n" in text else text[2:-2].split(b"],[")  # as in `_numbers`


def _column(
    before: bytes, name: str, tensor: Tensor, lines: list[bytes], rows: Sequence[int], after: bytes
) -> list[bytes]:
    """One output as it stands in each answer, with what stands before it there and behind its numbers."""
    datatype, shape = tensor.datatype, tensor.array.shape[1:]
    if len(lines) == len(rows):
        before += _before_data(name, datatype, (1, *shape)) + b"["
        return [before + line + after for line in lines]
    ends = list(accumulate(rows))
    return [
        b"%b%b[%b%b" % (before, _before_data(name, datatype, (n, *shape)), b",".join(lines[end - n : end]), after)
        for n, end in zip(rows, ends, strict=True)
    ]


def _elsewhere(request: InferRequest, response: InferResponse, name: str, blobs: list[Buffer]) -> bytes | None:
    """How an output is told of that lies in shared memory or behind the JSON; None where its values are told."""
    tensor, place = response.outputs[name], response.placed.get(name)
    parameters = told_place(place) if place is not None else {}
    if place is None:
        if not _binary(next((o.binary for o in request.outputs if o.name == name), None), request.binary_output):
            return None
        blobs.append(blob := encode_raw(tensor))
        parameters = {"binary_data_size": len(blob)}
    return dumped({"name": name, "datatype": tensor.datatype, "shape": tensor.array.shape, "parameters": parameters})


def is_long(request: InferRequest, response: InferResponse, may_be_packed: bool) -> bool:
    """Whether `encode_response`, or packing what it gives, would hold an event loop for milliseconds."""
    for name, (_, array) in response.outputs.items():
        if array.size > LONG_TO_PACK and name not in response.placed:
            return may_be_packed or _json_elements(request, response) > LONG_ARRAY
    return False


def _json_elements(request: InferRequest, response: InferResponse) -> int:
    asked = {output.name: output.binary for output in request.outputs}
    sizes = {name: tensor.array.size for name, tensor in response.outputs.items() if name not in response.placed}
    return sum(size for name, size in sizes.items() if not _binary(asked.get(name), request.binary_output))


def _binary(asked: bool | None, default: bool) -> bool:
    return default if asked is None else asked


def _opening(response: InferResponse) -> bytes:
    if not response.id and not response.parameters:
        return _plain_opening(response.model, response.version)
    document: dict[str, Any] = {"id": response.id} if response.id else {}
    document |= {"model_name": response.model, "model_version": str(response.version)}
    if response.parameters:
        document["parameters"] = response.parameters
    return dumped(document)[:-1] + b',"outputs":['


@lru_cache(256)
def _plain_opening(model: str, version: int) -> bytes:
    """What stands before the outputs in every answer of a version: written once."""
    return dumped({"model_name": model, "model_version": str(version)})[:-1] + b',"outputs":['


@lru_cache(1024)
def _before_data(name: str, datatype: str, shape: Shape) -> bytes:
    return dumped({"name": name, "datatype": datatype, "shape": shape})[:-1] + b',"data":'


def _data(name: str, tensor: Tensor) -> Sequence[bytes]:
    """One piece, or several of a long output."""
    values = encode_values(name, tensor)
    if isinstance(values, list):
        return (dumped(values),)
    return (_numbers(values),) if values.size <= LONG_ARRAY else tuple(write_pieces(values, _numbers))


def _numbers(values: Array) -> bytes:
    text = dumped(values)
    return dumped(_speakable(values)) if b"n" in text else text  # of null; no number has one


def _speakable(values: Array) -> list[Any]:
    """orjson writes null for NaN and infinities, which would come back as NaN or zero. Written by name they are JSON
    to every parser, and numpy reads the names as the numbers that they name."""
    named: list[Any] = values.tolist()
    for index in np.flatnonzero(~np.isfinite(values)).tolist():
        named[index] = _NAMES[str(named[index])]
    return named
