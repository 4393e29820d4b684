"""Strategies for requests that are almost right: documents, texts, tensors, headers, paths and bytes on the wire."""

import json
from typing import Any

from hypothesis import strategies as st
from tests.serving import json_tensor, rendered

from pilotlight_predictor.core.tensors import DATATYPES

GOOD = {"inputs": [json_tensor("x", "FP32", [2], [1, 2])]}
NUMBERS = st.one_of(
    st.integers(-(1 << 70), 1 << 70),
    st.sampled_from([0, -1, (1 << 31) - 1, 1 << 31, 1 << 32, 1 << 62, 1 << 63, 1 << 64, 10**400, 1e308, -0.0, 1.5]),
    st.floats(),
)
LEAVES = st.one_of(
    st.none(), st.booleans(), NUMBERS, st.text(max_size=8), st.sampled_from([*DATATYPES, "x", "y", "NaN"])
)
KEYS = st.sampled_from(
    ["name", "shape", "datatype", "data", "parameters", "inputs", "outputs", "id", "binary_data_size", "binary_data",
     "classification", "priority", "timeout", "binary_data_output", "headers", "triton_x", "sequence_id", "x"]
) | st.text(max_size=4)  # fmt: skip
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=8
)
BASES: list[Any] = [
    GOOD,
    {"id": "1", "inputs": [json_tensor("x", "FP32", [2, 2], [[1, 2], [3, 4]])], "outputs": [{"name": "y"}]},
    {"inputs": [json_tensor("a", "FP32", [1, 4], [1] * 4), json_tensor("b", "FP32", [1, 4], [1] * 4)],
     "outputs": [{"name": "sum", "parameters": {"classification": 2}}], "parameters": {"priority": 1, "timeout": 10}},
    {"inputs": [json_tensor("x", "BYTES", [2], ["a", "ü"])],
     "outputs": [{"name": "y", "parameters": {"binary_data": True}}]},
]  # fmt: skip


@st.composite
def mutated(draw: Any, bases: list[Any]) -> Any:
    """A good document with one to three of its places replaced, removed, repeated or renamed."""
    document = json.loads(json.dumps(draw(st.sampled_from(bases))))
    for _ in range(draw(st.integers(1, 3))):
        parent, key = document, None
        for _ in range(draw(st.integers(1, 5))):
            inner = parent if key is None else parent[key]
            if not isinstance(inner, (dict, list)) or not inner:
                break
            parent = inner
            key = draw(st.sampled_from(list(inner) if isinstance(inner, dict) else range(len(inner))))
        if key is None:
            return draw(JSON)
        change = draw(st.sampled_from(["replace", "replace", "remove", "repeat", "rename"]))
        if change == "replace":
            parent[key] = draw(JSON)
        elif change == "remove":
            del parent[key]
        elif change == "repeat" and isinstance(parent, list):
            parent.append(parent[key])
        elif isinstance(parent, dict):
            parent[draw(KEYS)] = parent.pop(key)
    return document


@st.composite
def spliced(draw: Any, texts: list[bytes]) -> bytes:
    """Good bytes with some cut out, put in or exchanged."""
    text = bytearray(draw(st.sampled_from(texts)))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 6)))
        text[start:end] = draw(
            st.binary(max_size=6) | st.sampled_from([b"[" * 40, b"\r\n", b'"', b"NaN", b"\\ud800", b"{}"])
        )
    return bytes(text)


TEXTS = [json.dumps(base).encode() for base in BASES]
SIZES = st.integers(-2, 40) | NUMBERS | st.sampled_from(["8", None, True, [], 1 << 63])
LENGTHS = st.integers(-5, 400).map(str) | st.sampled_from(
    ["0", "", "99999999999", "9" * 30, "1e2", "0x5", "+1", " 7", "\xb2"]
)


TENSORS = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["x", "y", ""]),
        "datatype": st.sampled_from(sorted(DATATYPES)),
        "shape": st.lists(
            st.integers(0, 5) | st.sampled_from([-1, 1 << 31, (1 << 31) - 1, 1 << 62, 1 << 64]), max_size=5
        ),
    }
)
BLOBS = st.binary(max_size=64) | st.lists(st.binary(max_size=5), max_size=4).map(
    lambda items: b"".join(len(item).to_bytes(4, "little") + item for item in items)
)
NAMES = [
    "Content-Encoding", "Accept-Encoding", "Inference-Header-Content-Length", "Authorization", "X-Forwarded-For",
    "Host", "Expect", "Connection", "Content-Type", "traceparent", "tracestate", "X-Request-Id", "Accept", "Origin",
    "TE", "Upgrade",
]  # fmt: skip
VALUES = st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_characters="\x7f"), max_size=30)
VALUES |= st.sampled_from(
    ["gzip", "deflate", "gzip;q=0.5, *;q=0", "100-continue", "close", "keep-alive", "upgrade", "0", "a" * 9000]
)


SEGMENTS = st.text(max_size=12) | st.sampled_from(
    ["v2", "models", "versions", "1", "infer", "repository", "load", "..", "%", "scalar"]
)


LOADS: list[Any] = [
    {"parameters": {"config": '{"max_batch_size": 0, "backend": "onnxruntime"}', "file:1/model.onnx": "AAAA"}},
    {"parameters": {"config": {"max_batch_size": 4, "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1]}],
                               "instance_group": [{"count": 1, "kind": "KIND_CPU"}], "dynamic_batching": {}}}},
    {"parameters": {"unload_dependents": True}},
    {"ready": True},
]  # fmt: skip


WIRE = [
    rendered("POST", "/v2/models/identity_fp32/infer", GOOD, {"Accept-Encoding": "gzip"}, "localhost"),
    rendered("POST", "/v2/models/identity_fp32/infer", GOOD, None, "localhost", chunked=True),
    rendered("GET", "/v2/health/ready", b"", {"Connection": "close"}, "localhost") * 2,
    rendered("GET", "/v2/models", b"", {"Expect": "100-continue"}, "localhost"),
]
