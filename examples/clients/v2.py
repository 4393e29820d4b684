"""The V2 inference protocol with nothing but the standard library; the other clients here ask through it.

Numbers travel as JSON. Bytes that need not be text (files, pictures) follow the JSON as a binary tensor: each item is
preceded by its length in four bytes, and a header says how long the JSON is.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

DIRECT = build_opener(ProxyHandler({}))  # the server is addressed directly, whatever proxy is set for the world outside
URL = "http://127.0.0.1:8080"


def tensor(name: str, datatype: str, shape: Sequence[int], data: Sequence[Any]) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": list(shape), "data": list(data)}


def infer(url: str, model: str, inputs: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The outputs by name; each has `datatype`, `shape` and flat `data`."""
    return _post(f"{url}/v2/models/{model}/infer", json.dumps({"inputs": inputs}).encode(), {})


def infer_bytes(url: str, model: str, name: str, items: Sequence[bytes], shape: Sequence[int]) -> dict[str, Any]:
    """As `infer`, for one input of bytes."""
    binary = b"".join(len(item).to_bytes(4, "little") + item for item in items)
    parameters = {"binary_data_size": len(binary)}
    described = {"name": name, "datatype": "BYTES", "shape": list(shape), "parameters": parameters}
    head = json.dumps({"inputs": [described]}).encode()
    return _post(f"{url}/v2/models/{model}/infer", head + binary, {"Inference-Header-Content-Length": str(len(head))})


def _post(url: str, body: bytes, headers: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    request = Request(
        url, body, {"Content-Type": "application/octet-stream" if headers else "application/json", **headers}
    )
    with DIRECT.open(request, timeout=60) as response:
        return {output["name"]: output for output in json.load(response)["outputs"]}
