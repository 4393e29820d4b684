"""The V2 inference protocol with nothing but the standard library; the other clients here ask through it.

Numbers travel as JSON. Bytes that need not be text (files, pictures) follow the JSON as a binary tensor: each item is
preceded by its length in four bytes, and a header says how long the JSON is.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

DIRECT = build_opener(ProxyHandler({}))  # the server is addressed directly, whatever proxy is set for the world outside
URL = os.environ.get("PREDICTOR_URL", "http://127.0.0.1:8080")


def tensor(name: str, datatype: str, shape: Sequence[int], data: Iterable[Any]) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": list(shape), "data": list(data)}


def infer(url: str, model: str, inputs: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The outputs by name; each has `datatype`, `shape` and flat `data`."""
    return post(f"{url}/v2/models/{model}/infer", json.dumps({"inputs": inputs}).encode())


def infer_bytes(url: str, model: str, name: str, items: Sequence[bytes], shape: Sequence[int]) -> dict[str, Any]:
    """As `infer`, for one input of bytes."""
    binary = b"".join(len(item).to_bytes(4, "little") + item for item in items)
    parameters = {"binary_data_size": len(binary)}
    described = {"name": name, "datatype": "BYTES", "shape": list(shape), "parameters": parameters}
    head = json.dumps({"inputs": [described]}).encode()
    return post(f"{url}/v2/models/{model}/infer", head + binary, binary_headers(len(head)))


def binary_headers(json_length: int) -> dict[str, str]:
    return {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(json_length)}


def post(url: str, body: bytes, headers: Mapping[str, str] | None = None) -> dict[str, dict[str, Any]]:
    with DIRECT.open(Request(url, body, headers or {"Content-Type": "application/json"}), timeout=60) as response:
        return {output["name"]: output for output in json.load(response)["outputs"]}
