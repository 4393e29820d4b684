"""The judge: NVIDIA's own Triton, as the benchmark installs it from a wheel, on ports that no other test gets."""

import contextlib
import fcntl
import os
import subprocess
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.environments import WORK, Environment, peer_environment
from bench.load import BenchError
from bench.servers import place_stub
from tests.differential.http_client import ask_http
from tests.judges.gomodules import Unavailable
from tests.ports import free_port

START_S = 180.0  # a busy machine is slow


class Triton(NamedTuple):
    """Where a Triton answers whose models at start are ready."""

    port: int
    grpc_port: int


@contextlib.contextmanager
def running_triton(repository: Path, models: Sequence[str], folder: Path) -> Iterator[Triton]:
    """Raises Unavailable where its wheel cannot be had or does not run."""
    environment = _environment()
    home = environment.site_packages / "pytriton" / "tritonserver"
    place_stub(home)
    found = Triton(free_port(), free_port())
    with (folder / "triton.log").open("w") as log:
        command = _command(home, repository, models, found)
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=_variables(environment))
    try:
        _wait_ready(process, found.port, folder / "triton.log")
        yield found
    finally:
        _stop(process)


def _environment() -> Environment:
    """Installed once for a checkout; whoever comes second waits for the first."""
    WORK.mkdir(exist_ok=True)
    try:
        with (WORK / "triton.lock").open("w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            return peer_environment("triton")
    except BenchError as reason:
        raise Unavailable(f"Triton's wheel cannot be installed: {reason}") from None


def _command(home: Path, repository: Path, models: Sequence[str], ports: Triton) -> list[str]:
    flags: Mapping[str, object] = {
        "model-repository": repository,
        "backend-directory": home / "backends",
        "model-control-mode": "explicit",
        "http-address": "127.0.0.1",
        "http-port": ports.port,
        "grpc-address": "127.0.0.1",
        "grpc-port": ports.grpc_port,
        "allow-metrics": "false",
    }
    named = [f"--load-model={name}" for name in models]
    return [str(home / "bin" / "tritonserver"), *(f"--{key}={value}" for key, value in flags.items()), *named]


def _variables(environment: Environment) -> dict[str, str]:
    """The stub embeds an interpreter: it is told where its library and the models' packages lie. It takes packages from
    beside the first Python of PATH: one of an environment that somebody has activated would have another numpy."""
    path = os.pathsep.join((str(environment.bin), os.environ.get("PATH", os.defpath)))
    library, packages = str(sysconfig.get_config_var("LIBDIR")), str(environment.site_packages)
    return {**os.environ, "JUDGE_SITE_PACKAGES": packages, "LD_LIBRARY_PATH": library, "PATH": path}


def _wait_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while not _is_ready(port):
        if process.poll() is not None or time.monotonic() > deadline:
            raise Unavailable(f"Triton does not run here, exit status {process.poll()}: {log.read_text()[-500:]}")
        time.sleep(0.05)


def _is_ready(port: int) -> bool:
    try:
        return ask_http(port, "GET", "/v2/health/ready").status == 200
    except OSError:
        return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(10)
    process.kill()
    process.wait()
