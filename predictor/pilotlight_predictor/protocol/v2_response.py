"""InferResponse → V2 JSON, or JSON with binary tensors behind it."""

from typing import Any, Final

import orjson

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.inference import InferRequest, InferResponse
from pilotlight_predictor.protocol.raw import encode_raw
from pilotlight_predictor.protocol.values import encode_values
from pilotlight_predictor.tensors import Tensor

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY
_NAMES: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


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
    """orjson writes null for NaN and infinities, which would come back as NaN or zero: they are written by name."""
    text = orjson.dumps(document, option=_OPTIONS)
    if b"null" in text and _name_nonfinite(document["outputs"]):
        text = orjson.dumps(document, option=_OPTIONS)
    return text


def _name_nonfinite(outputs: list[dict[str, Any]]) -> bool:
    """Puts strings in their places, which is JSON to every parser and which numpy reads as the numbers they name."""
    import numpy as np

    found = False
    for output in outputs:
        array = output.get("data")
        if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
            continue
        (odd,) = np.nonzero(~np.isfinite(array))
        if odd.size:
            found, values = True, array.tolist()
            for index in odd.tolist():
                values[index] = _NAMES[str(values[index])]
            output["data"] = values
    return found
