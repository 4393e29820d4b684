"""Malformed bodies of generate and generate_stream: never a status of ours, no hang, no growth."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.predictor.fuzzing import fuzz, unshaken
from tests.predictor.protocols.v2.malformed import mutated, spliced
from tests.serving import RunningServer

FINE = {200, 400, 404, 501}
BASES: list[Any] = [
    {"x": [1, 2.5], "id": "a", "temperature": 0.5},
    {"x": "text", "parameters": {"priority": 1, "timeout": 60_000_000}},
    {"a": [1, 2, 3, 4], "b": [[1, 2, 3, 4]], "stream": True},
    {"x": [[1], [2]], "sequence_id": 0},
]
BODIES = mutated(BASES).map(lambda document: json.dumps(document).encode())
BODIES |= spliced([json.dumps(base).encode() for base in BASES])
MODELS = st.sampled_from(["identity_fp32", "identity_bytes", "identity_bool", "matrix", "add_sub", "nobody"])
VERBS = st.sampled_from(["generate", "generate_stream"])


@pytest.fixture(autouse=True)
def _unshaken(server: RunningServer) -> Iterator[None]:
    with unshaken(server, lambda: server.post("/v2/models/identity_fp32/generate_stream", {"x": 1})):
        yield


def test_no_body_is_our_mistake(server: RunningServer) -> None:
    @fuzz(120)
    @given(model=MODELS, verb=VERBS, body=BODIES)
    def holds(model: str, verb: str, body: bytes) -> None:
        answer = server.post(f"/v2/models/{model}/{verb}", body)
        expired = answer.status == 503 and "timeout expired" in answer.error  # a client may ask for 1 µs
        assert answer.status in FINE or expired, (answer, body)
        assert answer.status == 200 or answer.error

    holds()
    assert server.post("/v2/models/identity_fp32/generate", {"x": 1}).json()["y"] == 1
