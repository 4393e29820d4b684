"""V2 over gRPC through the gateway, on a port that only a service that asks for gRPC has."""

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest
from tests.embedded import Platform, serverless
from tests.ports import free_range

triton = pytest.importorskip("tritonclient.grpc", reason="the client of gRPC is not installed")

SECRET = "correct horse"
TOKENS = f"    pilotlight.dev/auth-tokens-sha256: {hashlib.sha256(SECRET.encode()).hexdigest()}"


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    flags = ("--service-ports", str(free_range(20)))
    with Platform(tmp_path_factory.mktemp("grpc") / "home", flags=flags) as running:
        yield running


def over_grpc(**how: str) -> str:
    return serverless(**how).replace("protocolVersion: v2", "protocolVersion: grpc-v2")


def infer(address: str, headers: dict[str, str] | None = None) -> list[int]:
    """The shape of the answer about one flower."""
    import numpy as np

    flower = triton.InferInput("x", [1, 4], "FP32")
    flower.set_data_from_numpy(np.array([[5.1, 3.5, 1.4, 0.2]], np.float32))
    with triton.InferenceServerClient(address) as client:
        answer: Any = client.infer("iris", [flower], headers=headers, client_timeout=60)
        return list(answer.get_response().outputs[0].shape)


def test_a_grpc_call_wakes_a_service_from_zero_and_is_answered(platform: Platform) -> None:
    platform.deploy(over_grpc())
    platform.wait_phase("Standby")
    platform.wait(lambda: not platform.replicas() and "grpc" in platform.status().urls, "zero, and a port for gRPC")
    address = platform.status().urls["grpc"]
    assert infer(address) == [1, 3]
    platform.wait(lambda: platform.status().revisions[0].cold_starts == 1, "the cold start to be counted")
    assert platform.ask().status == 200, "HTTP leads to it too"


def test_the_port_for_grpc_comes_and_goes_with_the_protocol_and_asks_for_tokens(platform: Platform) -> None:
    platform.deploy(serverless())
    platform.wait(lambda: "port" in platform.status().urls, "its port for HTTP")
    assert "grpc" not in platform.status().urls
    platform.deploy(over_grpc(annotations=TOKENS))
    platform.wait_phase("Ready", "Standby")
    platform.wait(lambda: "grpc" in platform.status().urls, "a port for gRPC")
    address = platform.status().urls["grpc"]
    with pytest.raises(triton.InferenceServerException, match="UNAUTHENTICATED"):
        infer(address)
    assert infer(address, {"authorization": f"Bearer {SECRET}"}) == [1, 3]


def test_without_service_ports_there_is_none_for_grpc(tmp_path_factory: pytest.TempPathFactory) -> None:
    with Platform(tmp_path_factory.mktemp("none") / "home") as platform:
        platform.deploy(over_grpc())
        platform.wait_phase("Ready", "Standby")
        assert platform.status().urls.keys() == {"http", "host"}
