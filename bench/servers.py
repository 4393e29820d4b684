"""The servers of the comparison: one row each in SERVERS. To add one, write how it starts and add its row.

Every row is set for its best figures on one core (docs/benchmarks.md says how each setting was found), with what the
others do not do either (gRPC, access logs, metrics servers) turned off where it can be.
"""

import hashlib
import shutil
import sys
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bench.environments import Environment, own_environment, peer_environment
from bench.layouts import PEERS, mlserver_folder, onnx_repository, triton_repository
from bench.models import MAX_BATCH, Model
from bench.processes import Command

OURS = "pilotlight"


class Ports(NamedTuple):
    """Two free ports, and whether gRPC is to be served on the second one."""

    http: int
    rpc: int
    grpc: bool


Start = Callable[[Environment, Sequence[Model], Path, Ports], Command]


@dataclass(frozen=True, slots=True)
class Server:
    """One row: `start` gets the environment, the models, a folder of its own and its ports."""

    name: str
    title: str
    distribution: str
    environment: Callable[[], Environment]
    start: Start
    binary: bool = True  # understands the V2 binary tensor extension over HTTP
    grpc: bool = True  # is measured over gRPC too


def start_pilotlight(env: Environment, models: Sequence[Model], folder: Path, ports: Ports) -> Command:
    argv = [str(env.python), "-m", "pilotlight_predictor", "--threads", "1", "--max-batch-size", str(MAX_BATCH)]
    argv += ["--host", "127.0.0.1", "--http-port", str(ports.http), "--metrics-port", "-1"]
    argv += ["--grpc-port", str(ports.rpc if ports.grpc else -1)]
    if models[0].path.suffix == ".joblib":
        digest = hashlib.sha256(models[0].path.read_bytes()).hexdigest()
        argv += ["--trust-pickle", f"{models[0].path.name}={digest}"]
    if len(models) == 1:
        return Command([*argv, "--model-path", str(models[0].path), "--model-name", models[0].name])
    return Command([*argv, "--model-repository", str(onnx_repository(folder, models))])


def start_kserve(env: Environment, models: Sequence[Model], folder: Path, ports: Ports) -> Command:
    named = [f"{model.name}={model.path}" for model in models]
    return Command([str(env.python), str(PEERS / "kserve_server.py"), str(ports.http), *named])


def start_mlserver(env: Environment, models: Sequence[Model], folder: Path, ports: Ports) -> Command:
    settings = mlserver_folder(folder, models, ports)
    return Command([str(env.bin / "mlserver"), "start", "."], cwd=settings)


def start_triton(env: Environment, models: Sequence[Model], folder: Path, ports: Ports) -> Command:
    """The wheel's tritonserver, straight: pytriton's own proxy process in between would only cost it."""
    home = env.site_packages / "pytriton" / "tritonserver"
    place_stub(home)
    repository = triton_repository(folder, models)
    argv = [str(home / "bin" / "tritonserver"), f"--model-repository={repository}"]
    flags = {
        "backend-directory": home / "backends",
        "http-port": ports.http,
        "http-thread-count": 1,
        "grpc-port": ports.rpc,
        "allow-grpc": str(ports.grpc).lower(),
        "allow-metrics": "false",
        "log-info": "false",
    }
    environment = {
        "BENCH_SITE_PACKAGES": str(env.site_packages),
        "LD_LIBRARY_PATH": str(sysconfig.get_config_var("LIBDIR")),
    }
    return Command([*argv, *(f"--{key}={value}" for key, value in flags.items())], environment)


def place_stub(home: Path) -> None:
    """The wheel carries one stub per Python version and expects the right one beside the backend."""
    stub = home / "backends" / "python" / "triton_python_backend_stub"
    if not stub.exists():
        major, minor = sys.version_info[:2]
        shutil.copy(home / "python_backend_stubs" / f"{major}.{minor}" / stub.name, stub)


SERVERS: tuple[Server, ...] = (
    Server(OURS, "Pilotlight", "pilotlight", own_environment, start_pilotlight),
    Server("kserve", "KServe", "kserve", lambda: peer_environment("kserve"), start_kserve, grpc=False),
    Server("mlserver", "MLServer", "mlserver", lambda: peer_environment("mlserver"), start_mlserver, binary=False),
    Server("triton", "Triton", "nvidia-pytriton", lambda: peer_environment("triton"), start_triton),
)
