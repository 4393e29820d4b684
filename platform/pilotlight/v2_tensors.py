"""Bodies of V2 inference over HTTP: JSON, and after it the memory of binary tensors."""

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pilotlight.contract import HEADER_INFERENCE_LENGTH
from pilotlight.wire.http_client import decode_json

# Datatypes by numpy's names; in a body they are little-endian.
NUMPY_TYPES: Final = {
    "BOOL": "?", "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8", "INT8": "i1", "INT16": "<i2",
    "INT32": "<i4", "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
}  # fmt: skip


class Tensor(NamedTuple):
    """One input or output: `raw` is its memory, or else `data` its values in JSON."""

    name: str
    datatype: str
    shape: Sequence[int]
    raw: bytes | None = None
    data: Any = None


def encode_request(tensors: Iterable[Tensor], **parameters: Any) -> tuple[bytes, dict[str, str]]:
    """Return body and headers of a request with these inputs and parameters."""
    inputs, raws = list[dict[str, Any]](), list[bytes]()
    for each in tensors:
        values: dict[str, Any] = {"data": each.data}
        if each.raw is not None:
            values = {"parameters": {"binary_data_size": len(each.raw)}}
            raws.append(each.raw)
        inputs.append({"name": each.name, "shape": list(each.shape), "datatype": each.datatype, **values})
    document = json.dumps({"inputs": inputs, **({"parameters": parameters} if parameters else {})}).encode()
    if not raws:
        return document, {"Content-Type": "application/json"}
    headers = {"Content-Type": "application/octet-stream", HEADER_INFERENCE_LENGTH: str(len(document))}
    return b"".join((document, *raws)), headers


def decode_response(headers: Mapping[str, str], body: bytes) -> list[Tensor]:
    """Return the outputs of a response, whose headers have lower-case names."""
    offset = length = int(headers.get(HEADER_INFERENCE_LENGTH, len(body)))
    outputs = []
    for each in decode_json(body[:length])["outputs"]:
        size = each.get("parameters", {}).get("binary_data_size")
        raw = None if size is None else body[offset : offset + size]
        outputs.append(Tensor(each["name"], each["datatype"], each["shape"], raw, each.get("data")))
        offset += size or 0
    return outputs


def pack_bytes(elements: Iterable[bytes]) -> bytes:
    """Return the memory of a BYTES tensor: each element after its length."""
    return b"".join(struct.pack("<I", len(each)) + each for each in elements)


def unpack_bytes(raw: bytes) -> list[bytes]:
    elements, offset = list[bytes](), 0
    while offset < len(raw):
        (length,) = struct.unpack_from("<I", raw, offset)
        elements.append(raw[offset + 4 : offset + 4 + length])
        offset += 4 + length
    return elements
