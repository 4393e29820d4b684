"""HTTP cases that ask for an inference which both servers should be able to give, or to refuse, by its contents."""

import gzip
import json
import zlib
from collections.abc import Iterator
from typing import Any, Final

from tests.differential.case import HttpCase
from tests.differential.models import DATATYPES
from tests.differential.tensors import VALUES, blob, pair, tensor, with_blobs

ADD: Final = "/v2/models/add/infer"
TYPES: Final = "/v2/models/types/infer"
PARAMETERS: Final[dict[str, Any]] = {
    "none": {}, "text": {"p": "x"}, "number": {"p": 3}, "real": {"p": 0.5}, "flag": {"p": True}, "null": {"p": None},
    "list": {"p": [1]}, "object": {"p": {}}, "priority": {"priority": 1}, "priority-text": {"priority": "x"},
    "priority-negative": {"priority": -1}, "timeout": {"timeout": 5_000_000}, "timeout-text": {"timeout": "x"},
    "headers": {"headers": "x"}, "reserved": {"triton_x": 1}, "binary-text": {"binary_data_output": "x"},
    "binary-false": {"binary_data_output": False}, "empty-final": {"triton_enable_empty_final_response": True},
}  # fmt: skip
CLASSES: Final[tuple[Any, ...]] = (0, 1, 2, 4, 9, -1, "x", 1.5, True)


def inferences() -> Iterator[HttpCase]:
    for datatype in DATATYPES:
        yield from _of_datatype(datatype)
    for rows in (1, 2, 8, 9, 0):
        yield _infer(f"batch/{rows}", {"inputs": pair(rows)})
    yield from _ids()
    for name, parameters in PARAMETERS.items():
        yield _infer(f"parameters/{name}", {"inputs": pair(), "parameters": parameters})
    yield from _outputs()
    yield from _versions()
    yield from _packed()
    yield HttpCase("fails", "POST", "/v2/models/fails/infer", {"inputs": [tensor("x", "INT32", [2], [1, 2])]})


def _infer(name: str, document: Any) -> HttpCase:
    return HttpCase(f"infer/{name}", "POST", ADD, document)


def _of_datatype(datatype: str) -> Iterator[HttpCase]:
    """Values as JSON and as bytes, in either direction; nested as deep as nobody's shape says."""
    name, values = datatype.lower(), VALUES[datatype]
    raw = blob(datatype, values)
    spoken = tensor(name, datatype, [3], list(values))
    binary = tensor(name, datatype, [3], binary_data_size=len(raw))
    asked = {"outputs": [{"name": f"out_{name}", "parameters": {"binary_data": True}}]}
    whole = {"parameters": {"binary_data_output": True}}
    yield HttpCase(f"infer/{name}/json", "POST", TYPES, {"inputs": [spoken]})
    yield HttpCase(f"infer/{name}/nested", "POST", TYPES, {"inputs": [{**spoken, "data": [[v] for v in values]}]})
    yield HttpCase(f"infer/{name}/json-to-binary", "POST", TYPES, {"inputs": [spoken], **asked})
    yield HttpCase(f"infer/{name}/binary-to-json", "POST", TYPES, *with_blobs({"inputs": [binary]}, raw))
    yield HttpCase(f"infer/{name}/binary", "POST", TYPES, *with_blobs({"inputs": [binary], **asked}, raw))
    yield HttpCase(f"infer/{name}/all-binary", "POST", TYPES, *with_blobs({"inputs": [binary], **whole}, raw))


def _ids() -> Iterator[HttpCase]:
    for name, value in {"text": "abc", "empty": "", "number": 7, "wide": "größe", "null": None}.items():
        yield _infer(f"id/{name}", {"id": value, "inputs": pair()})


def _outputs() -> Iterator[HttpCase]:
    both = [{"name": "difference"}, {"name": "sum"}]
    chosen = {
        "one": both[:1], "both": both, "none": [], "twice": [both[0], both[0]], "unknown": [{"name": "x"}],
        "nameless": [{}], "text": "sum", "null": None, "object": {"name": "sum"}, "number-name": [{"name": 3}],
        "binary": [{"name": "sum", "parameters": {"binary_data": True}}],
        "binary-text": [{"name": "sum", "parameters": {"binary_data": "x"}}],
        "mixed": [{"name": "sum", "parameters": {"binary_data": True}}, {"name": "difference"}],
        "parameters-text": [{"name": "sum", "parameters": "x"}],
        "shared-memory": [{"name": "sum", "parameters": {"shared_memory_region": "r"}}],
    }  # fmt: skip
    for name, outputs in chosen.items():
        yield _infer(f"outputs/{name}", {"inputs": pair(), "outputs": outputs})
    for count in CLASSES:
        asked = [{"name": "sum", "parameters": {"classification": count}}, {"name": "difference"}]
        yield _infer(f"classes/{count}", {"inputs": pair(2), "outputs": asked})
    asked = [{"name": "difference", "parameters": {"classification": 2}}]
    yield _infer("classes/without-labels", {"inputs": pair(), "outputs": asked})
    asked = [{"name": "sum", "parameters": {"classification": 2, "binary_data": True}}]
    yield _infer("classes/binary", {"inputs": pair(), "outputs": asked})


def _versions() -> Iterator[HttpCase]:
    document = {"inputs": [tensor("x", "INT32", [2], [1, 2])]}
    for model, version in (
        ("versions", "1"),
        ("versions", "2"),
        ("versions", "3"),
        ("versions", "x"),
        ("unknown", "1"),
    ):
        yield HttpCase(f"infer/{model}/{version}", "POST", f"/v2/models/{model}/versions/{version}/infer", document)
    for model in ("versions", "unknown", "spare"):
        yield HttpCase(f"infer/{model}", "POST", f"/v2/models/{model}/infer", document)


def _packed() -> Iterator[HttpCase]:
    plain = json.dumps({"inputs": pair()}).encode()
    bodies = {"gzip": gzip.compress(plain), "deflate": zlib.compress(plain), "br": plain, "identity": plain}
    for encoding, body in bodies.items():
        yield HttpCase(f"packed/{encoding}", "POST", ADD, body, {"Content-Encoding": encoding})
    yield HttpCase("packed/broken", "POST", ADD, plain, {"Content-Encoding": "gzip"})
    large = {"inputs": [tensor("int32", "INT32", [4000], [7] * 4000)]}
    for encoding in ("gzip", "deflate", "br", "identity", "gzip, deflate", "*"):
        yield HttpCase(f"unpacked/{encoding}", "POST", TYPES, large, {"Accept-Encoding": encoding})
