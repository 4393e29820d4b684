"""Malformed requests of the TensorRT Inference Server's dialect: no 5xx, no hang, and NV-Status on every answer."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.predictor.fuzzing import fuzz, unshaken
from tests.predictor.protocols.trtis.judge import Judge
from tests.serving import RunningServer

MODELS = st.sampled_from(["identity_fp32", "identity_bytes", "identity_bool", "matrix", "scalar", "add_sub", "echo"])
WORDS = st.sampled_from(
    [
        "batch_size: 1", "batch_size: 4294967295", "batch_size: 0", "batch_size", ":", "{", "}", "[", "]", "<", ">",
        ",", "input", "output",
        'input { name: "x" }', 'input { name: "a" byte_size: 16 }', 'input { name: "b" dims: 4 }',
        'input { name: "x" dims: [ 2147483647, 2147483647, 2147483647 ] }', 'input { name: "x" byte_size: 4 }',
        'input { name: "x" byte_size: 18446744073709551615 }', 'input { name: "x" batch_byte_size: 4 }',
        'input { name: "x" dims: [ 0, 2147483647, 2147483647, 2147483647 ] }', 'input { name: "x" dims: [ 1, 1 ] }',
        'output { name: "y" }', 'output { name: "y" byte_size: 4 }', 'output { name: "sum" cls { count: 4294967295 } }',
        'output { name: "y" cls { count: 1 } }', "id: 18446744073709551615", "correlation_id: 3 flags: 3", "tags: 1",
        "cls", "1e999", "-", '"', "'", "\\x", "#", "\u00ff", "nan", "0x", "input: 1", "output: [ { } ]", "dims: -1",
    ]
)  # fmt: skip
BLOBS = st.binary(max_size=40) | st.sampled_from([b"", bytes(4), bytes(16), bytes(32), b"\1\0\0\0a"])
QUERIES = st.sampled_from(["", "?format=binary", "?format=text", "?format=", "?%ff", "?format=binary&format=x"])


@pytest.fixture(autouse=True)
def _unshaken(server: RunningServer) -> Iterator[None]:
    with unshaken(server, lambda: server.post("/api/infer/matrix", b"", {"NV-InferRequest": "batch_size: 1"})):
        yield


def test_no_request_is_our_mistake(server: RunningServer, old: Judge) -> None:
    @fuzz(500)
    @given(model=MODELS, words=st.lists(WORDS, max_size=6), blob=BLOBS, query=QUERIES, full=st.booleans())
    def holds(model: str, words: list[str], blob: bytes, query: str, full: bool) -> None:
        header = {"NV-InferRequest": " ".join(words)}
        answer = server.post(f"/api/infer/{model}{query}", blob, header, full=full)
        assert answer.status in {200, 400}, (answer, words, blob)
        status = old.text("RequestStatus", answer.headers["nv-status"])
        assert status.code == (1 if answer.status == 200 else 5)
        assert answer.status == 200 or (status.msg and not answer.body)

    holds()
    assert server.get("/api/health/ready").status == 200


def test_no_path_is_our_mistake(server: RunningServer) -> None:
    names = st.sampled_from(
        ["api", "infer", "status", "health", "live", "profile", "add_sub", "1", "x", "%00", "-1", ""]
    )

    @fuzz(200)
    @given(method=st.sampled_from(["GET", "POST", "HEAD", "PUT"]), names=st.lists(names, max_size=4), query=QUERIES)
    def holds(method: str, names: list[str], query: str) -> None:
        answer = server.request(method, "/api/" + "/".join(names) + query)
        assert answer.status in {200, 400, 404, 405}, answer

    holds()


def test_a_header_nested_without_end_or_long_is_refused(server: RunningServer) -> None:
    for text in ("input {" * 500, "input { name: " + '"x" ' * 2000, "1" * 5000, "batch_size: " + "9" * 100):
        assert server.post("/api/infer/add_sub", b"", {"NV-InferRequest": text}).status == 400
