"""InferResponse → V2 JSON, or JSON with binary tensors behind it."""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.inference import InferRequest, InferResponse
from pilotlight_predictor.protocol.pieces import LONG_ARRAY, dumped, write_pieces
from pilotlight_predictor.protocol.raw import encode_raw
from pilotlight_predictor.protocol.values import encode_values
from pilotlight_predictor.tensors import Tensor

LONG_TO_PACK: Final = 1 << 15  # elements: packed in a millisecond
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
    texts = _texts(document)
    return (sum(map(len, texts)) if any(blobs) else None), [*texts, *blobs]


def is_long(request: InferRequest, response: InferResponse, may_be_packed: bool) -> bool:
    """Whether `encode_response`, or packing what it gives, would hold an event loop for milliseconds."""
    for _, array in response.outputs.values():
        if array.size > LONG_TO_PACK:
            return may_be_packed or _json_elements(request, response) > LONG_ARRAY
    return False


def _json_elements(request: InferRequest, response: InferResponse) -> int:
    asked = {output.name: output.binary for output in request.outputs}
    sizes = {name: tensor.array.size for name, tensor in response.outputs.items()}
    return sum(size for name, size in sizes.items() if not _binary(asked.get(name), request.binary_output))


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


def _texts(document: dict[str, Any]) -> list[bytes]:
    """The JSON; in pieces, each soon written, where an output is long."""
    outputs = document["outputs"]
    if any(_is_long_array(output.get("data")) for output in outputs):
        del document["outputs"]
        return [dumped(document)[:-1], b',"outputs":[', *_long_texts(outputs), b"]}"]
    text = dumped(document)
    if b"null" in text:
        for output in outputs:
            if "data" in output:
                output["data"] = _speakable(output["data"])
        text = dumped(document)
    return [text]


def _long_texts(outputs: list[dict[str, Any]]) -> Iterator[bytes]:
    for index, output in enumerate(outputs):
        values = output.pop("data", None)
        yield (b"," if index else b"") + dumped(output)[:-1]
        if values is not None:
            yield b',"data":'
            yield from write_pieces(values, _numbers) if _is_long_array(values) else (_numbers(values),)
        yield b"}"


def _is_long_array(values: Any) -> bool:
    return isinstance(values, np.ndarray) and values.size > LONG_ARRAY


def _numbers(values: Any) -> bytes:
    text = dumped(values)
    return dumped(_speakable(values)) if b"null" in text else text


def _speakable(values: Any) -> Any:
    """orjson writes null for NaN and infinities, which would come back as NaN or zero. Written by name they are JSON
    to every parser, and numpy reads the names as the numbers that they name."""
    if isinstance(values, list) or values.dtype.kind != "f":
        return values
    named: list[Any] = values.tolist()
    for index in np.flatnonzero(~np.isfinite(values)).tolist():
        named[index] = _NAMES[str(named[index])]
    return named
