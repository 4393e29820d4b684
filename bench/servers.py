"""The servers of the comparison: one row each in SERVERS. To add one, write how it starts and add its row.

Every row is set for its best figures on one core (docs/benchmarks.md says how each setting was found), with what the
others do not do either (gRPC, access logs, metrics servers) turned off where it can be.
"""

import shutil
import sys
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.environments import Environment, own_environment, peer_environment
from bench.layouts import PEERS, mlserver_folder, onnx_repository, triton_repository
from bench.models import Model
from bench.processes import Command

Start = Callable[[Environment, Sequence[Model], Path, Sequence[int]], Command]


@dataclass(frozen=True, slots=True)
class Server:
    """One row: `start` gets the environment, the models, a folder of its own and two free ports (HTTP first)."""

    name: str
    title: str
    distribution: str
    environment: Callable[[], Environment]
    start: Start
    binary: bool = True  # understands the V2 binary tensor extension over HTTP


def start_pilotlight(env: Environment, models: Sequence[Model], folder: Path, ports: Sequence[int]) -> Command:
    argv = [str(env.python), "-m", "pilotlight_predictor", "--http-port", str(ports[0])]
    if len(models) == 1:
        return Command([*argv, "--model-path", str(models[0].path)])
    return Command([*argv, "--model-repository", str(onnx_repository(folder, models))])


def start_kserve(env: Environment, models: Sequence[Model], folder: Path, ports: Sequence[int]) -> Command:
    named = [f"{model.name}={model.path}" for model in models]
    return Command([str(env.python), str(PEERS / "kserve_server.py"), str(ports[0]), *named])


def start_mlserver(env: Environment, models: Sequence[Model], folder: Path, ports: Sequence[int]) -> Command:
    settings = mlserver_folder(folder, models, ports)
    return Command([str(env.bin / "mlserver"), "start", "."], cwd=settings)


def start_triton(env: Environment, models: Sequence[Model], folder: Path, ports: Sequence[int]) -> Command:
    """The wheel's tritonserver, straight: pytriton's own proxy process in between would only cost it."""
    home = env.site_packages / "pytriton" / "tritonserver"
    _place_stub(home)
    repository = triton_repository(folder, models)
    argv = [str(home / "bin" / "tritonserver"), f"--model-repository={repository}"]
    flags = {
        "backend-directory": home / "backends",
        "http-port": ports[0],
        "http-thread-count": 1,
        "allow-grpc": "false",
        "allow-metrics": "false",
        "log-info": "false",
    }
    environment = {
        "BENCH_SITE_PACKAGES": str(env.site_packages),
        "LD_LIBRARY_PATH": str(sysconfig.get_config_var("LIBDIR")),
    }
    return Command([*argv, *(f"--{key}={value}" for key, value in flags.items())], environment)


def _place_stub(home: Path) -> None:
    """The wheel carries one stub per Python version and expects the right one beside the backend."""
    stub = home / "backends" / "python" / "triton_python_backend_stub"
    if not stub.exists():
        major, minor = sys.version_info[:2]
        shutil.copy(home / "python_backend_stubs" / f"{major}.{minor}" / stub.name, stub)


SERVERS: tuple[Server, ...] = (
    Server("pilotlight", "Pilotlight", "pilotlight", own_environment, start_pilotlight),
    Server("kserve", "KServe", "kserve", lambda: peer_environment("kserve"), start_kserve),
    Server("mlserver", "MLServer", "mlserver", lambda: peer_environment("mlserver"), start_mlserver, binary=False),
    Server("triton", "Triton", "nvidia-pytriton", lambda: peer_environment("triton"), start_triton),
)
