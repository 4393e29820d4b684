"""HTTP cases that change what is served, in this order, or speak to the other extensions. They come last."""

import json
from collections.abc import Iterator
from typing import Any, Final

from tests.differential.case import HttpCase
from tests.differential.tensors import pair

CONFIG: Final = {"name": "spare", "backend": "python", "max_batch_size": 2} | {
    "input": [{"name": name, "data_type": "TYPE_FP32", "dims": [4]} for name in "ab"],
    "output": [{"name": name, "data_type": "TYPE_FP32", "dims": [4]} for name in ("sum", "difference")],
    "instance_group": [{"count": 1, "kind": "KIND_CPU"}],
}
BODIES: Final[dict[str, Any]] = {
    "plain": {}, "ready": {"ready": True}, "all": {"ready": False}, "text": {"ready": "x"}, "no-json": b"{", "list": [],
}  # fmt: skip


def repository() -> Iterator[HttpCase]:
    for name, body in BODIES.items():
        yield HttpCase(f"index/{name}", "POST", "/v2/repository/index", body)
    yield HttpCase("index/named", "POST", "/v2/repository/somewhere/index")
    yield _call("unload", "unknown")
    yield _call("unload", "spare", "never-loaded")
    yield _call("load", "unknown")
    yield _call("load", "broken")
    yield HttpCase("index/after-broken", "POST", "/v2/repository/index")
    yield from _refused()
    yield _call("load", "spare", "with-config", {"parameters": {"config": json.dumps(CONFIG)}})
    yield HttpCase("config/spare/given", "GET", "/v2/models/spare/config")
    yield HttpCase("infer/spare/beyond-given-batch", "POST", "/v2/models/spare/infer", {"inputs": pair(3)})
    yield _call("load", "spare", "again")
    yield HttpCase("infer/spare/loaded", "POST", "/v2/models/spare/infer", {"inputs": pair(3)})
    yield HttpCase("ready/spare/loaded", "GET", "/v2/models/spare/ready")
    yield _call("unload", "spare", "loaded", {"parameters": {"unload_dependents": True}})
    yield HttpCase("infer/spare/unloaded", "POST", "/v2/models/spare/infer", {"inputs": pair()})
    yield HttpCase("ready/spare/unloaded", "GET", "/v2/models/spare/ready")
    yield HttpCase("metadata/spare/unloaded", "GET", "/v2/models/spare")


def _refused() -> Iterator[HttpCase]:
    parameters: dict[str, Any] = {
        "config-no-json": {"config": "{"}, "config-number": {"config": 3},
        "config-unknown-field": {"config": '{"nix": 1}'},
        "file-without-config": {"file:1/model.py": "YQ=="}, "unknown": {"nix": 1}, "text": "x",
    }  # fmt: skip
    for name, value in parameters.items():
        yield _call("load", "unknown" if name == "unknown" else "spare", name, {"parameters": value})
    yield _call("load", "spare", "no-json", b"{")
    yield _call("unload", "add", "dependents-text", {"parameters": {"unload_dependents": "x"}})
    yield _call("unload", "add", "no-json", b"{")


def _call(verb: str, model: str, name: str = "", body: Any = b"") -> HttpCase:
    suffix = f"/{name}" if name else ""
    return HttpCase(f"{verb}/{model}{suffix}", "POST", f"/v2/repository/models/{model}/{verb}", body)
