"""What is measured: one function per case, each from a fresh start of the server to a few named figures."""

import contextlib
import http.client
import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.environments import Environment
from bench.load import BenchError, Target, send, send_beside_flood
from bench.machine import Cores
from bench.models import Model, Payload
from bench.processes import Running, cpu_seconds, free_ports, running, settled_memory_mb
from bench.servers import Server

JSON_CONNECTIONS = (1, 32, 256)
BINARY_CONNECTIONS = (1, 8)
FLOOD_CONNECTIONS = 64
STARTS = 2
WARM_UP_S = 1.0

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Subject:
    """One server, ready to be started with any of the models."""

    server: Server
    environment: Environment
    models: Mapping[str, Model]
    payloads: Mapping[str, Payload]
    work: Path
    cores: Cores

    @contextlib.contextmanager
    def serving(self, *names: str) -> Iterator[Running]:
        """The server with these models, each of which has given a right answer."""
        ports = free_ports(2)
        folder = self.work / f"{self.server.name}-{'-'.join(names)}"
        models = [self.models[name] for name in names]
        command = self.server.start(self.environment, models, folder, ports)
        with running(command, ports[0], names, self.cores, self.work / f"{folder.name}.log") as server:
            for name in names:
                check_answer(server.port, name, self.payloads[name])
            yield server

    def target(self, server: Running, name: str) -> Target:
        body = self.work / f"{name}.body"
        body.write_bytes(self.payloads[name].body)
        return Target(f"http://127.0.0.1:{server.port}{_infer_path(name)}", self.payloads[name], body)


def json_load(subject: Subject, seconds: float) -> Figures:
    """Small requests as JSON, with growing concurrency."""
    figures: Figures = {}
    with subject.serving("iris") as server:
        target = subject.target(server, "iris")
        send(target, JSON_CONNECTIONS[1], WARM_UP_S, subject.cores)
        for connections in JSON_CONNECTIONS:
            figures |= _measured(subject, server, target, connections, seconds, f"json.c{connections}")
    return figures


def binary_load(subject: Subject, seconds: float) -> Figures:
    """One large tensor as binary: how fast bytes reach the model."""
    if not subject.server.binary:
        return {}
    figures: Figures = {}
    with subject.serving("image") as server:
        target = subject.target(server, "image")
        send(target, BINARY_CONNECTIONS[1], WARM_UP_S, subject.cores)
        for connections in BINARY_CONNECTIONS:
            prefix = f"binary.c{connections}"
            figures |= _measured(subject, server, target, connections, seconds, prefix)
            figures[f"{prefix}.mb_s"] = figures[f"{prefix}.rps"] * len(target.payload.body) / 1e6
    return figures


def start_time(subject: Subject, seconds: float) -> Figures:
    """From exec until the model's ready answer; the cases before have brought its files into the page cache."""
    times: list[float] = []
    for _ in range(STARTS):
        with subject.serving("iris") as server:
            times.append(server.ready_s)
    return {"start.ready_s": statistics.mean(times)}


def idle_memory(subject: Subject, seconds: float) -> Figures:
    """After the model is ready and has answered once."""
    with subject.serving("iris") as server:
        return {"memory.idle_mb": settled_memory_mb(server.pid)}


def fairness(subject: Subject, seconds: float) -> Figures:
    """What a flood on one model does to the p99 of another model in the same server."""
    with subject.serving("iris", "quiet") as server:
        flood, quiet = subject.target(server, "iris"), subject.target(server, "quiet")
        send(quiet, 1, WARM_UP_S, subject.cores)
        alone = send(quiet, 1, seconds, subject.cores)
        beside, flooding = send_beside_flood(quiet, flood, FLOOD_CONNECTIONS, seconds, subject.cores)
    return {
        "fairness.alone_p50_ms": alone.p50_ms,
        "fairness.beside_p50_ms": beside.p50_ms,
        "fairness.alone_p99_ms": alone.p99_ms,
        "fairness.beside_p99_ms": beside.p99_ms,
        "fairness.factor": beside.p99_ms / alone.p99_ms,
        "fairness.flood_rps": flooding.rps,
        "fairness.errors": alone.errors + beside.errors + flooding.errors,
    }


CASES: Mapping[str, Callable[[Subject, float], Figures]] = {
    "json": json_load,
    "binary": binary_load,
    "start": start_time,
    "memory": idle_memory,
    "fairness": fairness,
}


def check_answer(port: int, model: str, payload: Payload) -> None:
    """A fast wrong answer is no figure: the outputs must be those of onnxruntime itself."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    with contextlib.closing(connection):
        connection.request("POST", _infer_path(model), payload.body, dict(payload.headers))
        response = connection.getresponse()
        body = response.read()
    if response.status != 200:
        raise BenchError(f"{model}: the first inference gave {response.status}: {body[:200]!r}")
    data = json.loads(body)["outputs"][0]["data"]
    values = [value for row in data for value in (row if isinstance(row, list) else [row])]
    if len(values) != len(payload.answer) or not all(map(_close, values, payload.answer)):
        raise BenchError(f"{model}: the first inference gave {values}, onnxruntime itself gives {payload.answer}")


def _measured(
    subject: Subject, server: Running, target: Target, connections: int, seconds: float, prefix: str
) -> Figures:
    before = cpu_seconds(server.pid)
    load = send(target, connections, seconds, subject.cores)
    return {
        f"{prefix}.server_cpu": (cpu_seconds(server.pid) - before) / seconds,
        f"{prefix}.rps": load.rps,
        f"{prefix}.p50_ms": load.p50_ms,
        f"{prefix}.p99_ms": load.p99_ms,
        f"{prefix}.errors": load.errors,
        f"{prefix}.load_cpu": load.load_cpu,
    }


def _infer_path(model: str) -> str:
    return f"/v2/models/{model}/infer"


def _close(value: float, expected: float) -> bool:
    return math.isclose(value, expected, rel_tol=1e-4, abs_tol=1e-6)
