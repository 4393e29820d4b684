"""HTTP cases that are wrong in one way each: JSON, tensors, shapes, datatypes, binary sizes, raw requests."""

import json
from collections.abc import Iterator
from typing import Any, Final

from tests.differential.case import HttpCase
from tests.differential.http_inferences import ADD
from tests.differential.tensors import blob, pair, tensor, with_blobs

TEXTS: Final = {
    "empty": b"", "blank": b"  ", "no-json": b"{", "text": b'"x"', "list": b"[]", "null": b"null", "number": b"3",
    "no-inputs": b"{}", "trailing": b'{"inputs": []} x', "not-utf8": b'{"inputs": "\xff"}', "twice": b"{}{}",
    "deep": b"[" * 200 + b"]" * 200,
    "nan": b'{"inputs": [{"name": "a", "datatype": "FP32", "shape": [1, 4], "data": [NaN, 1, 1, 1]}]}',
}  # fmt: skip
INPUTS: Final[dict[str, Any]] = {
    "null": None, "text": "x", "object": {}, "empty": [], "of-text": ["x"], "of-null": [None], "of-lists": [[]],
    "one-missing": pair()[:1], "one-twice": [pair()[0], pair()[0]],
    "one-too-many": [*pair(), tensor("c", "FP32", [1, 4], [1, 2, 3, 4])],
}  # fmt: skip
CHANGES: Final[dict[str, dict[str, Any]]] = {
    "name-unknown": {"name": "c"}, "name-number": {"name": 3}, "name-empty": {"name": ""}, "name-null": {"name": None},
    "datatype-other": {"datatype": "INT32"}, "datatype-unknown": {"datatype": "FLOAT"},
    "datatype-null": {"datatype": None}, "datatype-lower": {"datatype": "fp32"},
    "datatype-bytes": {"datatype": "BYTES", "data": ["a", "b", "c", "d"]},
    "shape-text": {"shape": "x"}, "shape-null": {"shape": None}, "shape-empty": {"shape": []},
    "shape-real": {"shape": [1.5, 4]},
    "shape-negative": {"shape": [-1, 4]}, "shape-zero": {"shape": [0, 4], "data": []}, "shape-flat": {"shape": [4]},
    "shape-other": {"shape": [1, 3], "data": [1, 2, 3]}, "shape-rows": {"shape": [2, 4], "data": [1] * 8},
    "shape-deep": {"shape": [1, 4, 1]}, "shape-of-text": {"shape": ["1", "4"]},
    "data-short": {"data": [1.0]}, "data-long": {"data": [1.0] * 5}, "data-text": {"data": "abcd"},
    "data-null": {"data": None},
    "data-of-text": {"data": ["1", "2", "3", "4"]}, "data-of-null": {"data": [None] * 4}, "data-object": {"data": {}},
    "data-of-flags": {"data": [True, False, True, False]}, "data-of-objects": {"data": [{}] * 4},
    "data-ragged": {"data": [[1, 2], [3], 4]}, "data-whole": {"data": [1, 2, 3, 4]},
    "data-huge": {"data": [1e60, 1, 1, 1]},
    "parameters-text": {"parameters": "x"}, "parameters-null": {"parameters": None},
    "size-with-data": {"parameters": {"binary_data_size": 16}},
    "size-text": {"parameters": {"binary_data_size": "x"}}, "extra-key": {"extra": 1},
    "shared-memory": {"parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 16}},
}  # fmt: skip
MISSING: Final = ("name", "datatype", "shape", "data")
NUMBERS: Final[dict[str, list[Any]]] = {
    "int8": [128], "uint8": [-1], "int32": [2**31], "uint64": [-1], "int64": [2**63], "bool": [2], "bytes": [3],
}  # fmt: skip


def mistakes() -> Iterator[HttpCase]:
    for name, text in TEXTS.items():
        yield HttpCase(f"body/{name}", "POST", ADD, text)
    for name, inputs in INPUTS.items():
        yield HttpCase(f"inputs/{name}", "POST", ADD, {"inputs": inputs})
    for name, change in CHANGES.items():
        yield HttpCase(f"input/{name}", "POST", ADD, {"inputs": pair(1, **change)})
    for field in MISSING:
        inputs = [{key: value for key, value in each.items() if key != field} for each in pair()]
        yield HttpCase(f"input/without-{field}", "POST", ADD, {"inputs": inputs})
    for name, data in NUMBERS.items():
        document = {"inputs": [tensor(name, name.upper(), [1], data)]}
        yield HttpCase(f"number/{name}", "POST", "/v2/models/types/infer", document)
    for name, parameters in {"text": "x", "null": None, "list": []}.items():
        yield HttpCase(f"parameters/of-{name}", "POST", ADD, {"inputs": pair(), "parameters": parameters})
    yield from _binary()
    yield from _raw()


def _binary() -> Iterator[HttpCase]:
    raw = blob("FP32", [1.0, 2.0, 3.0, 4.0])
    for name, (size, sent) in {
        "short": (16, raw[:8]), "long": (16, raw + b"xx"), "size-short": (8, raw), "size-long": (32, raw),
        "size-long-and-sent": (32, raw * 2), "size-zero": (0, b""), "size-negative": (-1, raw), "none-sent": (16, b""),
    }.items():  # fmt: skip
        inputs = [pair()[0], tensor("b", "FP32", [1, 4], binary_data_size=size)]
        yield HttpCase(f"binary/{name}", "POST", ADD, *with_blobs({"inputs": inputs}, sent))
    text = json.dumps({"inputs": pair()}).encode()
    for length in ("x", "-1", "5", str(len(text) + 1), "99999999999999999999", str(len(text))):
        named = {str(len(text)): "exact", str(len(text) + 1): "beyond"}.get(length, length)
        yield HttpCase(f"binary/length/{named}", "POST", ADD, text, {"Inference-Header-Content-Length": length})
    words = {
        "cut": b"\x05\0\0\0ab", "too-few": b"\1\0\0\0a", "length-cut": b"\1\0", "too-many": b"\1\0\0\0a" * 3,
    }  # fmt: skip
    for name, sent in words.items():
        document = {"inputs": [tensor("bytes", "BYTES", [2], binary_data_size=len(sent))]}
        yield HttpCase(f"binary/bytes/{name}", "POST", "/v2/models/types/infer", *with_blobs(document, sent))


def _raw() -> Iterator[HttpCase]:
    """The header's value 0: the whole body is the one input."""
    zero = {"Inference-Header-Content-Length": "0"}
    three, two = blob("FP32", [1.0, 2.0, 3.0]), blob("INT32", [1, 2])
    yield HttpCase("raw/matrix", "POST", "/v2/models/matrix/infer", three * 2, zero)
    yield HttpCase("raw/matrix-odd", "POST", "/v2/models/matrix/infer", three[:8], zero)
    yield HttpCase("raw/fixed", "POST", "/v2/models/versions/infer", two, zero)
    yield HttpCase("raw/fixed-long", "POST", "/v2/models/versions/infer", two * 2, zero)
    yield HttpCase("raw/fixed-empty", "POST", "/v2/models/versions/infer", b"", zero)
    yield HttpCase("raw/two-inputs", "POST", ADD, three, zero)
    yield HttpCase("raw/unknown", "POST", "/v2/models/unknown/infer", three, zero)
