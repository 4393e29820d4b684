"""TRTIS response: InferResponse → raw outputs in the order of the request, then the InferResponseHeader. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.classification import ranked
from pilotlight_predictor.errors import BadRequest
from pilotlight_predictor.inference import InferResponse
from pilotlight_predictor.protocol.raw import encode_raw
from pilotlight_predictor.protocol.trtis_request import Header
from pilotlight_predictor.protocol.trtis_schema import RESPONSE_HEADER, RESPONSE_HEADER_1_0
from pilotlight_predictor.protocol.trtis_wire import write_binary, write_text
from pilotlight_predictor.tensors import Tensor

Labels = Mapping[str, Sequence[str]]


class Encoded(NamedTuple):
    """Body and, for 0.11 and later, the NV-InferResponse header, without the classes, which may be many."""

    pieces: list[Buffer]
    header: str | None


def encode_infer(
    header: Header, response: InferResponse, labels: Labels, *, batched: bool, binary: bool
) -> Encoded:  # fmt: skip
    blobs, values = describe(header, response, labels, batched=batched)
    table = RESPONSE_HEADER if header.old else RESPONSE_HEADER_1_0
    last = write_binary(values, table) if binary else write_text(values, table).encode()
    if header.old:
        return Encoded([*blobs, last], None)
    outputs = [{"name": output["name"], "raw": output.get("raw")} for output in values["output"]]
    return Encoded([*blobs, last], write_text({**values, "output": outputs}, table, one_line=True))


def describe(
    header: Header, response: InferResponse, labels: Labels, *, batched: bool
) -> tuple[list[Buffer], dict[str, Any]]:
    """Return the raw outputs, and the values of the InferResponseHeader."""
    classes = {output.name: output.classes for output in header.outputs}
    blobs: list[Buffer] = []
    outputs: list[dict[str, Any]] = []
    for name, tensor in response.outputs.items():
        if count := classes.get(name, 0):
            outputs.append(
                {"name": name, "batch_classes": _classes(name, tensor, count, labels.get(name, ()), batched)}
            )
            continue
        blob = encode_raw(tensor)
        blobs.append(blob)
        outputs.append({"name": name, "raw": _raw(header, name, tensor, len(blob), batched)})
    values = {
        "model_name": response.model,
        "model_version": response.version,
        "batch_size": max(header.batch_size, 1),
        "output": outputs,
        "id": header.id,
    }
    return blobs, values


def _raw(header: Header, name: str, tensor: Tensor, size: int, batched: bool) -> dict[str, Any]:
    """Return the size of one row for 0.7, the shape of one and the size of all rows for 0.11."""
    if not header.old:
        return {"dims": tensor.array.shape[1:] if batched else tensor.array.shape, "batch_byte_size": size}
    if tensor.datatype == "BYTES":
        raise BadRequest(f"output '{name}' is of strings, which have no byte_size: ask without byte_size, as 0.11 does")
    return {"byte_size": size // (len(tensor.array) or 1) if batched else size}


def _classes(
    name: str, tensor: Tensor, count: int, labels: Sequence[str], batched: bool
) -> list[dict[str, list[dict[str, Any]]]]:  # fmt: skip
    rows, top = ranked(name, tensor, count, batched)
    with np.errstate(over="ignore"):
        rows = rows.astype(np.float32)  # the type of the message
    return [
        {"cls": [_class(row[index], int(index), labels) for index in best]}
        for row, best in zip(rows, top, strict=True)
    ]  # fmt: skip


def _class(value: Any, index: int, labels: Sequence[str]) -> dict[str, Any]:
    """Return one class; `value` is a numpy scalar, which prints no more digits than it has."""
    return {"idx": index, "value": value, "label": labels[index] if index < len(labels) else ""}
