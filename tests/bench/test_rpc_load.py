"""The gRPC load generator against a real grpcio server: it counts what is answered rightly, and nothing else."""

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
from bench.rpc_load import METHOD
from tests.serving import ROOT

ANSWER = b"forty-two"
SECONDS = "2"  # a busy machine may answer nothing for a while


@pytest.fixture
def port() -> Iterator[int]:
    """Echoes ANSWER for the message `good` and fails for any other."""

    def answer(message: bytes, context: Any) -> bytes:
        if message != b"good":
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no")
        return ANSWER

    server = grpc.server(futures.ThreadPoolExecutor(4))
    service, _, method = METHOD.decode().strip("/").partition("/")
    handlers = {method: grpc.unary_unary_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    found = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield found
    server.stop(None).wait()


def measured(port: int, message: bytes, expected: int, folder: Path, connections: int = 2) -> dict[str, float]:
    body = folder / "body"
    body.write_bytes(message)
    command = [sys.executable, "-m", "bench.rpc_load", str(port), str(connections), SECONDS, str(expected), str(body)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    return dict(json.loads(done.stdout.removeprefix("RESULT ")))


def test_right_answers_are_counted_with_their_latency(port: int, tmp_path: Path) -> None:
    result = measured(port, b"good", len(ANSWER), tmp_path)
    assert result["requests"] > 0
    assert result["status"] == 0
    assert 0 < result["p50_us"] <= result["p99_us"]


@pytest.mark.parametrize(("message", "expected"), [(b"bad", len(ANSWER)), (b"good", len(ANSWER) + 1)])
def test_a_refusal_and_an_answer_of_another_length_are_errors(
    port: int, tmp_path: Path, message: bytes, expected: int
) -> None:
    result = measured(port, message, expected, tmp_path)
    assert result["status"] == result["requests"] > 0
