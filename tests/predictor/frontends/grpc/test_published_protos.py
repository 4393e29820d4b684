"""Every gRPC dialect has its proto in the tree, and a client made from it is answered alike by all of them."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.predictor.frontends.grpc.conftest import PROTOS, grpc_address
from tests.serving import ROOT, RunningServer

from pilotlight_predictor.frontends.grpc import services

CLIENT = ROOT / "examples" / "clients" / "grpc_clients.py"
OF_THEIR_OWN = ("grpc.health", "grpc.reflection")  # whose clients are packages


def test_a_client_of_each_dialect_is_told_the_same(tmp_path: Path, serve: Callable[..., RunningServer]) -> None:
    shutil.copytree(ROOT / "examples" / "iris" / "repository", tmp_path, dirs_exist_ok=True)
    (tmp_path / "iris" / "1").mkdir(exist_ok=True)
    shutil.copy(ROOT / "examples" / "iris" / "model.onnx", tmp_path / "iris" / "1" / "model.onnx")
    address = grpc_address(serve(tmp_path, "--grpc-port", "0"))
    done = subprocess.run([sys.executable, CLIENT, address], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    assert [name for name, _ in lines] == ["v2", "trtis", "predict"]
    assert len({shares for _, shares in lines}) == 1


def test_every_service_that_is_served_has_its_proto_and_its_client() -> None:
    protos = "\n".join(path.read_text() for path in PROTOS.rglob("*.proto"))
    client = CLIENT.read_text()
    for service in services():
        own = service.name.rpartition(".")[2]
        assert f"service {own} {{" in protos, own
        assert service.name.startswith(OF_THEIR_OWN) or f"{own}Stub" in client or own == "GRPCServer", own
