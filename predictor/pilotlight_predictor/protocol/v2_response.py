"""InferResponse → V2 JSON, or JSON with binary tensors behind it."""

from typing import Any

import orjson

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.inference import InferRequest, InferResponse
from pilotlight_predictor.protocol.raw import encode_raw
from pilotlight_predictor.protocol.values import encode_values
from pilotlight_predictor.tensors import Tensor

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY


def encode_response(request: InferRequest, response: InferResponse) -> tuple[int | None, list[Buffer]]:
    """The length of the JSON where blobs follow it (else None), and the pieces of the body in order."""
    blobs: list[Buffer] = []
    document: dict[str, Any] = {"id": response.id} if response.id else {}
    document["model_name"] = response.model
    document["model_version"] = str(response.version)
    if response.parameters:
        document["parameters"] = response.parameters
    document["outputs"] = _outputs(request, response, blobs)
    text = dump(document)
    return (len(text) if any(blobs) else None), [text, *blobs]


def _outputs(request: InferRequest, response: InferResponse, blobs: list[Buffer]) -> list[dict[str, Any]]:
    default = request.binary_output
    if not request.outputs:
        return [_output(name, tensor, default, blobs) for name, tensor in response.outputs.items()]
    wanted = {output.name: output.binary for output in request.outputs}
    return [_output(n, t, _binary(wanted.get(n), default), blobs) for n, t in response.outputs.items()]


def _binary(asked: bool | None, default: bool) -> bool:
    return default if asked is None else asked


def _output(name: str, tensor: Tensor, binary: bool, blobs: list[Buffer]) -> dict[str, Any]:
    datatype, array = tensor
    if not binary:
        return {"name": name, "datatype": datatype, "shape": array.shape, "data": encode_values(name, tensor)}
    blob = encode_raw(tensor)
    blobs.append(blob)
    size = {"binary_data_size": len(blob)}
    return {"name": name, "datatype": datatype, "shape": array.shape, "parameters": size}


def dump(document: dict[str, Any]) -> bytes:
    """orjson writes null for NaN and infinities, which no client reads back; then Python's encoder writes them."""
    text = orjson.dumps(document, option=_OPTIONS)
    return _dump_nonfinite(document, text) if b"null" in text else text


def _dump_nonfinite(document: dict[str, Any], text: bytes) -> bytes:
    import json

    import numpy as np

    arrays = [output.get("data") for output in document["outputs"]]
    floats = [a for a in arrays if isinstance(a, np.ndarray) and a.dtype.kind == "f"]
    if all(np.isfinite(array).all() for array in floats):
        return text
    return json.dumps(document, default=lambda value: value.tolist(), separators=(",", ":")).encode()
