"""InferResponse → V2 JSON, or JSON with binary tensors behind it."""

import math
from typing import Any

import orjson

from pilotlight_predictor.inference import InferRequest, InferResponse
from pilotlight.wire.http1 import Buffer

from pilotlight_predictor.protocol.raw import encode_raw
from pilotlight_predictor.protocol.values import encode_values
from pilotlight_predictor.tensors import Tensor

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY


def encode_response(request: InferRequest, response: InferResponse) -> tuple[int | None, list[Buffer]]:
    """The length of the JSON where blobs follow it (else None), and the pieces of the body in order."""
    document: dict[str, Any] = {}
    if response.id:
        document["id"] = response.id
    document["model_name"] = response.model
    document["model_version"] = str(response.version)
    if response.parameters:
        document["parameters"] = response.parameters
    blobs: list[Buffer] = []
    wanted = {output.name: output.binary for output in request.outputs}
    document["outputs"] = [
        _output(name, tensor, _binary(wanted.get(name), request.binary_output), blobs)
        for name, tensor in response.outputs.items()
    ]
    text = dump(document)
    return (len(text) if any(blobs) else None), [text, *blobs]


def _binary(asked: bool | None, default: bool) -> bool:
    return default if asked is None else asked


def _output(name: str, tensor: Tensor, binary: bool, blobs: list[Buffer]) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": name, "datatype": tensor.datatype, "shape": tensor.array.shape}
    if binary:
        blob = encode_raw(tensor)
        blobs.append(blob)
        entry["parameters"] = {"binary_data_size": len(blob)}
    else:
        entry["data"] = encode_values(name, tensor)
    return entry


def dump(document: dict[str, Any]) -> bytes:
    """orjson writes null for NaN and infinities, which no client reads back; then Python's encoder writes them."""
    text = orjson.dumps(document, option=_OPTIONS)
    return _dump_nonfinite(document, text) if b"null" in text else text


def _dump_nonfinite(document: dict[str, Any], text: bytes) -> bytes:
    import json

    import numpy as np

    arrays = [output.get("data") for output in document["outputs"]]
    floats = [a for a in arrays if isinstance(a, np.ndarray) and a.dtype.kind == "f"]
    if all(math.isfinite(value) for array in floats for value in array.tolist()):
        return text
    return json.dumps(document, default=lambda value: value.tolist(), separators=(",", ":")).encode()
