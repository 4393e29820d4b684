"""A server with a gRPC port, and clients for it: Triton's own, and messages made from our published protos."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import tritonclient.grpc as triton
from google.protobuf import descriptor_pool, message_factory
from protos import descriptors
from tests.serving import ROOT, RunningServer

PROTOS = ROOT / "protos"
Call = Callable[..., Any]


@pytest.fixture(scope="session")
def pool() -> descriptor_pool.DescriptorPool:
    found = descriptor_pool.DescriptorPool()
    for file in descriptors.files().file:
        found.Add(file)
    return found


@pytest.fixture(scope="session")
def message(pool: descriptor_pool.DescriptorPool) -> Call:
    """message("inference.ModelReadyRequest", name="m"): of the protobuf library, from our protos."""

    def make(name: str, /, **fields: Any) -> Any:
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))(**fields)

    return make


@pytest.fixture(scope="session")
def rpc_server(zoo: Path, serve_session: Callable[..., RunningServer]) -> RunningServer:
    """Serves the zoo over gRPC too. No test may change its models."""
    return serve_session(zoo, "--grpc-port", "0")


def grpc_address(server: RunningServer) -> str:
    return f"127.0.0.1:{server.wait_for_event('grpc.listening')['grpc_port']}"


@pytest.fixture(scope="session")
def address(rpc_server: RunningServer) -> str:
    return grpc_address(rpc_server)


@pytest.fixture
def client(address: str) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(address) as made:
        yield made


class Caller:
    """Calls methods by name with messages of the protobuf library."""

    def __init__(self, address: str, message: Call) -> None:
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self.channel = grpc.insecure_channel(address, options=options)
        self._message = message

    def __call__(self, method: str, answer: str, request: Any, **how: Any) -> Any:
        reply = self.channel.unary_unary(method)(_bytes(request), timeout=how.pop("timeout", 60), **how)
        return self._read(answer, reply)

    def stream(self, method: str, answer: str, requests: list[Any], **how: Any) -> Iterator[Any]:
        call = self.channel.stream_stream(method)(map(_bytes, requests), timeout=60, **how)
        return (self._read(answer, reply) for reply in call)

    def _read(self, answer: str, reply: bytes) -> Any:
        read = self._message(answer)
        read.ParseFromString(reply)
        return read


def _bytes(request: Any) -> bytes:
    return request if isinstance(request, bytes) else bytes(request.SerializeToString())


@pytest.fixture
def caller_of(message: Call) -> Iterator[Callable[[str], Caller]]:
    made: list[Caller] = []

    def make(address: str) -> Caller:
        made.append(Caller(address, message))
        return made[-1]

    yield make
    for each in made:
        each.channel.close()


@pytest.fixture
def caller(address: str, caller_of: Callable[[str], Caller]) -> Caller:
    return caller_of(address)
