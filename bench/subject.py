"""One server of the comparison, to be started with any of the models and asked over HTTP or gRPC."""

import contextlib
import http.client
import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.environments import Environment
from bench.load import BenchError, Target
from bench.machine import Cores
from bench.models import Model, Payload
from bench.processes import Running, free_ports, running
from bench.servers import Ports, Server

Figures = dict[str, float]
SETTLING_S = 2.5  # after ready: ours imports then what its start did not wait for


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
    def serving(self, *names: str, grpc: bool = False) -> Iterator[Running]:
        """The server with these models, each of which has given a right answer; over gRPC its case asks for one."""
        http_port, rpc_port = free_ports(2)
        ports = Ports(http_port, rpc_port, grpc)
        folder = self.work / f"{self.server.name}-{names[0] if len(names) == 1 else f'{len(names)}-models'}"
        models = [self.models[name] for name in names]
        command = self.server.start(self.environment, models, folder, ports)
        with running(command, ports, names, self.cores, self.work / f"{folder.name}.log") as server:
            for name in () if grpc else names:
                check_answer(server.port, name, self.payloads[name])
            time.sleep(SETTLING_S)
            yield server

    def target(self, server: Running, name: str, payload: Payload | None = None) -> Target:
        """What is sent to this model: the request of its case, or another one."""
        sent = payload or self.payloads[name]
        body = self.work / f"{name}.body"
        body.write_bytes(sent.body)
        return Target(f"http://127.0.0.1:{server.port}{infer_path(name)}", sent, body)


def check_answer(port: int, model: str, payload: Payload) -> None:
    """A fast wrong answer is no figure: the outputs must be those of onnxruntime itself."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    with contextlib.closing(connection):
        connection.request("POST", infer_path(model), payload.body, dict(payload.headers))
        response = connection.getresponse()
        body = response.read()
    if response.status != 200:
        raise BenchError(f"{model}: the first inference gave {response.status}: {body[:200]!r}")
    if payload.check is not None:
        payload.check(body)
        return
    data = json.loads(body)["outputs"][0]["data"]
    values = [value for row in data for value in (row if isinstance(row, list) else [row])]
    if len(values) != len(payload.answer) or not all(map(_close, values, payload.answer)):
        raise BenchError(f"{model}: the first inference gave {values}, onnxruntime itself gives {payload.answer}")


def infer_path(model: str) -> str:
    return f"/v2/models/{model}/infer"


def _close(value: float, expected: float) -> bool:
    return math.isclose(value, expected, rel_tol=1e-4, abs_tol=1e-6)
