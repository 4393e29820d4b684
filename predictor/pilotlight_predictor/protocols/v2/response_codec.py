"""Encoder of V2 inference responses: JSON, or JSON followed by binary tensors. Pure."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final

import numpy as np

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.core.request_parameters import region_parameters
from pilotlight_predictor.core.requests import InferRequest, InferResponse
from pilotlight_predictor.core.tensors import Array, Shape, Tensor, bf16_to_float, encode_raw
from pilotlight_predictor.protocols.json_values import (
    LONG_ARRAY,
    NONFINITE_NAMES,
    decode_strings,
    dump_json,
    encoding_size,
    write_pieces,
)

LONG_TO_ENCODE: Final = 1 << 15  # elements: encoded in a millisecond
_UNLIKE_NUMPY: Final = frozenset({"BYTES", "BF16"})


def encode_response(request: InferRequest, response: InferResponse) -> tuple[int | None, list[Buffer]]:
    """Return the length of the JSON if binary tensors follow it (else None), and the pieces of the body."""
    texts: list[Buffer] = [_opening(response)]
    blobs: list[Buffer] = []
    external, long = bool(request.binary_output or request.outputs or response.shared_outputs), False
    for name, tensor in response.outputs.items():
        if len(texts) > 1:
            texts.append(b",")
        if external and (text := _external_output(request, response, name, blobs)) is not None:
            texts.append(text)
            continue
        texts.append(_before_data(name, tensor.datatype, tensor.array.shape))
        datatype, values = tensor.datatype, tensor.array.ravel()
        if datatype == "BF16":
            values = bf16_to_float(np.ascontiguousarray(values))
        write = _numbers if datatype != "BYTES" else lambda texts, name=name: dump_json(decode_strings(name, texts))
        if encoding_size(values) <= LONG_ARRAY:
            texts.append(write(values))
        else:
            long = True
            texts.extend(write_pieces(values, write))
        texts.append(b"}")
    texts.append(b"]}")
    if not long:
        texts = [b"".join(texts)]
    return (sum(map(len, texts)) if blobs and any(blobs) else None), [*texts, *blobs]


def encode_rows(response: InferResponse, rows: Sequence[int]) -> list[bytes] | None:
    """Return the bodies of all responses of a batch, of which each has as many rows as `rows` says; None if they must
    be encoded one by one with `encode_response`."""
    columns: list[list[bytes]] = []
    before, last = _opening(response), len(response.outputs) - 1
    for name, tensor in response.outputs.items():
        datatype, array = tensor
        if datatype in _UNLIKE_NUMPY or not 0 < array.size <= LONG_TO_ENCODE:
            return None
        # The numbers of all rows are encoded by one call.
        text = dump_json(np.ascontiguousarray(array).reshape(len(array), -1))
        if b"n" in text:  # as in `_numbers`
            return None
        lines = text[2:-2].split(b"],[")
        columns.append(_column(before, name, tensor, lines, rows, b"]}" if len(columns) < last else b"]}]}"))
        before = b","
    if len(columns) == 1:
        return columns[0]
    return [b"".join(texts) for texts in zip(*columns, strict=True)] or None


def with_id(body: bytes, identity: str) -> bytes:
    """Add an id to the body of a response without one."""
    return b'{"id":%b,%b' % (dump_json(identity), body[1:])


def _column(
    before: bytes, name: str, tensor: Tensor, lines: list[bytes], rows: Sequence[int], after: bytes
) -> list[bytes]:
    """Return the JSON of one output in each response, between `before` and `after`."""
    datatype, shape = tensor.datatype, tensor.array.shape[1:]
    if len(lines) == len(rows):
        before += _before_data(name, datatype, (1, *shape)) + b"["
        return [before + line + after for line in lines]
    ends = list(accumulate(rows))
    return [
        b"%b%b[%b%b" % (before, _before_data(name, datatype, (n, *shape)), b",".join(lines[end - n : end]), after)
        for n, end in zip(rows, ends, strict=True)
    ]


def _external_output(request: InferRequest, response: InferResponse, name: str, blobs: list[Buffer]) -> bytes | None:
    """Return the JSON of an output in shared memory or behind the JSON; None if its values are in the JSON."""
    tensor, shared = response.outputs[name], response.shared_outputs.get(name)
    parameters = region_parameters(shared) if shared is not None else {}
    if shared is None:
        if not _binary(next((o.binary for o in request.outputs if o.name == name), None), request.binary_output):
            return None
        blobs.append(blob := encode_raw(tensor))
        parameters = {"binary_data_size": len(blob)}
    document = {"name": name, "datatype": tensor.datatype, "shape": tensor.array.shape}
    return dump_json({**document, "parameters": parameters} if parameters else document)


def is_long(request: InferRequest, response: InferResponse, may_compress: bool) -> bool:
    """Return whether encoding, or compressing the result, would block the event loop for milliseconds."""
    in_json = 0  # elements
    for name, (datatype, array) in response.outputs.items():
        if datatype == "BYTES":
            size = array.size if array.size > LONG_TO_ENCODE else encoding_size(array)
        else:
            size = array.size
        if size > LONG_TO_ENCODE and name not in response.shared_outputs:
            if may_compress or datatype == "BYTES":
                return True
            requested = next((output.binary for output in request.outputs if output.name == name), None)
            in_json += 0 if _binary(requested, request.binary_output) else size
    return in_json > LONG_ARRAY


def _binary(requested: bool | None, default: bool) -> bool:
    return default if requested is None else requested


def _opening(response: InferResponse) -> bytes:
    if not response.id and not response.parameters:
        return _plain_opening(response.model, response.version)
    document: dict[str, Any] = {"id": response.id} if response.id else {}
    document |= {"model_name": response.model, "model_version": str(response.version)}
    if response.parameters:
        document["parameters"] = response.parameters
    return dump_json(document)[:-1] + b',"outputs":['


@lru_cache(256)
def _plain_opening(model: str, version: int) -> bytes:
    """Return the JSON before the outputs, the same for all responses of a version."""
    return dump_json({"model_name": model, "model_version": str(version)})[:-1] + b',"outputs":['


@lru_cache(1024)
def _before_data(name: str, datatype: str, shape: Shape) -> bytes:
    return dump_json({"name": name, "datatype": datatype, "shape": shape})[:-1] + b',"data":'


def _numbers(values: Array) -> bytes:
    """Return the JSON; NaN and infinities as strings, which numpy parses, while orjson writes null for them."""
    text = dump_json(values)
    if b"n" not in text:  # of null; no number has one
        return text
    named: list[Any] = values.tolist()
    for index in np.flatnonzero(~np.isfinite(values)).tolist():
        named[index] = NONFINITE_NAMES[str(named[index])]
    return dump_json(named)
