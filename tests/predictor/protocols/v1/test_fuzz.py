"""Malformed V1 requests against the running server: no 5xx, no hang, and a sentence for each refusal."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.predictor.fuzzing import fuzz, unshaken
from tests.serving import RunningServer

MODELS = ["identity_fp32", "identity_bytes", "identity_bool", "identity_int8", "matrix", "scalar", "add_sub", "echo"]
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["NaN", "Infinity", {"b64": "AA=="}, {"b64": "?"}, {"b64": 1}, "\ud800"]),
)
NAMES = st.sampled_from(["x", "a", "b", "b64", "", "y"])
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=12
)
DOCUMENTS = VALUES | st.dictionaries(st.sampled_from(["instances", "inputs", "signature_name"]), VALUES, max_size=2)
PATHS = st.sampled_from(["/v1/models/{}:predict", "/v1/models/{}:explain", "/v1/models/{}/versions/1:predict"])


def refused_or_answered(server: RunningServer, path: str, body: bytes, full: bool) -> None:
    answer = server.post(path, body, full=full)
    assert answer.status in {200, 400, 404, 501}, (answer, body)
    assert answer.status == 200 or answer.error


@pytest.fixture(autouse=True)
def _unshaken(server: RunningServer) -> Iterator[None]:
    with unshaken(server, lambda: server.post("/v1/models/matrix:predict", {"instances": [[1]]})):
        yield


@pytest.mark.parametrize("full", [False, True])
def test_no_document_is_our_mistake(server: RunningServer, full: bool) -> None:
    @fuzz(300)
    @given(path=PATHS, model=st.sampled_from(MODELS), document=DOCUMENTS)
    def holds(path: str, model: str, document: Any) -> None:
        refused_or_answered(server, path.format(model), json.dumps(document).encode(), full)

    holds()
    assert server.get("/v1/models/matrix").status == 200


def test_no_text_is_our_mistake(server: RunningServer) -> None:
    pieces = st.sampled_from([b'{"instances":', b"[", b"]", b"}", b"1", b"NaN", b'"', b",", b"\xff", b"\\u", b"1e999"])

    @fuzz(200)
    @given(model=st.sampled_from(MODELS), parts=st.lists(pieces, max_size=12))
    def holds(model: str, parts: list[bytes]) -> None:
        refused_or_answered(server, f"/v1/models/{model}:predict", b"".join(parts), False)

    holds()


def test_nesting_without_end_is_refused(server: RunningServer) -> None:
    for depth in (65, 1000, 100_000):
        body = b'{"instances":' + b"[" * depth + b"]" * depth + b"}"
        assert server.post("/v1/models/matrix:predict", body).status == 400
