"""Compressed messages: requests as Triton's client sends them, responses by level and what the client accepts."""

import asyncio
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tests.onnx_models import write_identity
from tests.predictor.frontends.grpc.conftest import grpc_address
from tests.predictor.frontends.grpc.connection_harness import House, call, data, framed, play
from tests.serving import RunningServer

from pilotlight.wire.http2 import frames
from pilotlight.wire.http2.hpack import Decoder
from pilotlight_predictor.config.grpc_settings import GrpcSettings
from pilotlight_predictor.frontends.grpc.response_compression import compress, response_encoding

ROWS = np.zeros((1, 60_000), np.float32)  # longer than what is compressed on the event loop
BOTH = "identity, deflate, gzip"


@pytest.mark.parametrize(
    ("level", "accepted", "encoding"),
    [
        ("none", BOTH, ""), ("low", BOTH, "gzip"), ("medium", BOTH, "deflate"), ("high", BOTH, "deflate"),
        ("high", "gzip", "gzip"), ("low", "deflate", "deflate"), ("high", "identity", ""), ("high", "", ""),
        ("high", "br", ""),
    ],
)  # fmt: skip
def test_the_encoding_follows_from_the_level_and_the_client(level: str, accepted: str, encoding: str) -> None:
    assert response_encoding(level, accepted) == encoding


def test_a_message_that_does_not_become_smaller_is_sent_as_it_is() -> None:
    assert compress(b"hi", "gzip") == (b"hi", 0)


@pytest.fixture(scope="module", params=["none", "low", "high"])
def client(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    serve_session: Callable[..., RunningServer],
) -> Iterator[triton.InferenceServerClient]:
    repository: Path = tmp_path_factory.mktemp("models")
    write_identity(repository, "identity", "FP32", ["n", "m"])
    server = serve_session(repository, "--grpc-port=0", f"--grpc-infer-response-compression-level={request.param}")
    with triton.InferenceServerClient(grpc_address(server)) as made:
        yield made


@pytest.mark.parametrize("algorithm", [None, "gzip", "deflate"])
@pytest.mark.parametrize("rows", [ROWS, ROWS[:, :100]], ids=["long", "short"])
def test_triton_s_client_infers_with_compression(
    client: triton.InferenceServerClient, algorithm: str | None, rows: Any
) -> None:
    tensor = triton.InferInput("x", list(rows.shape), "FP32").set_data_from_numpy(rows)
    result = client.infer("identity", [tensor], compression_algorithm=algorithm)
    np.testing.assert_array_equal(result.as_numpy("y"), rows)


def test_other_calls_follow_a_compressed_first_response(serve: Callable[..., RunningServer], tmp_path: Path) -> None:
    write_identity(tmp_path, "identity", "FP32", ["n", "m"])
    server = serve(tmp_path, "--grpc-port=0", "--grpc-infer-response-compression-level=high")
    tensor = triton.InferInput("x", list(ROWS.shape), "FP32").set_data_from_numpy(ROWS)
    alone = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own
    with triton.InferenceServerClient(grpc_address(server), channel_args=alone) as client:
        for _ in range(2):
            np.testing.assert_array_equal(client.infer("identity", [tensor]).as_numpy("y"), ROWS)
            assert client.is_server_live()
            assert client.get_model_metadata("identity").name == "identity"


@pytest.mark.parametrize("first", ["plain", "compressed"])
@pytest.mark.parametrize("method", ["Ask", "Talk"])
@pytest.mark.parametrize(("encoding", "wbits"), [("gzip", 31), ("deflate", 15)])
def test_responses_are_compressed_and_decoders_stay_in_step(method: str, encoding: str, wbits: int, first: str) -> None:
    calls = [(1, ""), (3, encoding), (5, ""), (7, encoding)]
    text = b"abc" * 1000

    async def scene() -> None:
        house, decoder = House(grpc=GrpcSettings(compression="low")), Decoder(1 << 16)
        for number, accepted in calls if first == "plain" else calls[1:]:
            house.hear(call(number, method, ("grpc-accept-encoding", accepted)), data(number, framed(text), ends=True))
            while len(blocks := [payload for kind, payload in house.said(number) if kind == frames.HEADERS]) < 2:
                await asyncio.sleep(0.01)
            head, trailers = (dict(decoder.fields(block)[0]) for block in blocks)
            assert (head.get("grpc-encoding", ""), trailers["grpc-status"]) == (accepted, "0")
            message = b"".join(payload for kind, payload in house.said(number) if kind == frames.DATA)
            assert message[0] == bool(accepted)
            assert (zlib.decompress(message[5:], wbits) if accepted else message[5:]) == text

    play(scene)
