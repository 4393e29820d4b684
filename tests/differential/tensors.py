"""The tensors that cases send: a few values of every datatype as JSON, and the same as bytes."""

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

VALUES: Final[Mapping[str, Sequence[Any]]] = {
    "BOOL": (True, False, True),
    "UINT8": (0, 7, 255), "UINT16": (0, 7, 65535), "UINT32": (0, 7, 4294967295), "UINT64": (0, 7, 18446744073709551615),
    "INT8": (-128, 7, 127), "INT16": (-32768, 7, 32767), "INT32": (-(2**31), 7, 2**31 - 1),
    "INT64": (-(2**63), 7, 2**63 - 1),
    "FP16": (0.5, -2.0, 1024.0), "FP32": (0.5, -2.25, 1e10), "FP64": (0.1, -2.25, 1e300),
    "BYTES": ("a", "", "grün"),
}  # fmt: skip
PACKED: Final = {
    "BOOL": "?", "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q", "INT8": "b", "INT16": "h", "INT32": "i",
    "INT64": "q", "FP16": "e", "FP32": "f", "FP64": "d",
}  # fmt: skip


def blob(datatype: str, values: Sequence[Any]) -> bytes:
    if datatype == "BYTES":
        encoded = [str(value).encode() for value in values]
        return b"".join(struct.pack("<I", len(each)) + each for each in encoded)
    return struct.pack(f"<{len(values)}{PACKED[datatype]}", *values)


def tensor(name: str, datatype: str, shape: Sequence[int], data: Any = None, **parameters: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"name": name, "datatype": datatype, "shape": list(shape)}
    made |= {"parameters": parameters} if parameters else {}
    return made if data is None else {**made, "data": data}


def pair(rows: int = 1, **changed: Any) -> list[dict[str, Any]]:
    """Both inputs of `add`; `changed` replaces fields of the second one."""
    b = tensor("b", "FP32", [rows, 4], [1.0, 2.0, 3.0, 4.0] * rows)
    return [tensor("a", "FP32", [rows, 4], [10.0, 20.0, 30.0, 50.0] * rows), {**b, **changed}]


def with_blobs(document: Mapping[str, Any], *blobs: bytes) -> tuple[bytes, dict[str, str]]:
    """The body, and the header that says where its JSON ends."""
    text = json.dumps(document).encode()
    return text + b"".join(blobs), {"Inference-Header-Content-Length": str(len(text))}
