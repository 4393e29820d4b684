"""Cases that only our own server has: what bounds its figures on this machine, measured in the same run.

The cases of cases.py are for every server; these say how far a figure could have gone, so that a promise that is missed
comes with its reason.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from bench.environments import ROOT, Environment
from bench.load import BenchError, Target, send
from bench.machine import Cores, on_core
from bench.models import MAX_BATCH, Model, iris_payload
from bench.processes import Command, cpu_seconds, free_ports, running
from bench.servers import OURS, Ports, Start, start_pilotlight
from bench.subject import Figures, Subject, check_answer

WORKERS: Final = (1, 2)
WORKER_ROWS: Final = (1, MAX_BATCH)
WORKER_CONNECTIONS: Final = 64
COPY_S: Final = 0.5
WARM_UP_S: Final = 1.0
IMPORTS: Final = "import numpy, onnxruntime"
IMPORTS_LIMIT_S: Final = 60.0


def sink_mb_s(subject: Subject, target: Target, seconds: float) -> float:
    """The same requests to a program that only reads them."""
    (port,) = free_ports(1)
    command = Command([sys.executable, "-m", "bench.sink", str(port)], cwd=ROOT)
    with running(command, (port, 0), ("wide",), subject.cores, subject.work / "sink.log"):
        bare = replace(target, url=f"http://127.0.0.1:{port}/")
        send(bare, 1, WARM_UP_S, subject.cores)
        return send(bare, 1, seconds, subject.cores).rps * len(target.payload.body) / 1e6


def copy_mb_s(size: int, cores: Cores) -> float:
    """One copy of so many bytes in memory, by one thread."""
    source, target, times = np.ones(size, np.uint8), np.zeros(size, np.uint8), 0
    with on_core(cores.server):
        began = time.perf_counter()
        while (elapsed := time.perf_counter() - began) < COPY_S:
            np.copyto(target, source)
            times += 1
    return size * times / elapsed / 1e6


def imports_s(subject: Subject, limit_s: float = IMPORTS_LIMIT_S) -> float:
    """A bare interpreter that imports what the model needs, on the server's core: no start can be quicker."""
    with on_core(subject.cores.server):
        began = time.perf_counter()
        try:
            subprocess.run([subject.environment.python, "-c", IMPORTS], check=True, timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise BenchError(f"{IMPORTS} did not end within {limit_s:g} s") from None
        except subprocess.CalledProcessError as error:
            raise BenchError(f"{IMPORTS} ended with {error.returncode}") from None
        return time.perf_counter() - began


def workers(subject: Subject, seconds: float) -> Figures:
    """One worker and two on all cores, which the load shares with them: small requests, and 64 rows in each."""
    if subject.server.name != OURS or (os.cpu_count() or 1) < max(WORKERS):
        return {}
    figures: Figures = {}
    for count in WORKERS:
        figures |= _with_workers(subject, count, seconds)
    for rows in WORKER_ROWS:
        one, two = (f"workers.r{rows}.n{count}" for count in WORKERS)
        room = max(WORKERS) - figures[f"{two}.load_cpu"]
        figures[f"workers.r{rows}.factor"] = figures[f"{two}.rps"] / figures[f"{one}.rps"]
        figures[f"workers.r{rows}.bound"] = room / figures[f"{one}.server_cpu"]
    return figures


def _with_workers(subject: Subject, count: int, seconds: float) -> Figures:
    server = replace(subject.server, start=_started_with(count))
    free, figures = replace(subject, server=server, cores=Cores(None, None)), Figures()
    with free.serving("iris") as started:
        for rows in WORKER_ROWS:
            payload = iris_payload(subject.models["iris"], rows)
            check_answer(started.port, "iris", payload)
            target = free.target(started, "iris", payload)
            send(target, WORKER_CONNECTIONS, WARM_UP_S, free.cores)
            before = cpu_seconds(started.pid)
            load = send(target, WORKER_CONNECTIONS, seconds, free.cores)
            prefix = f"workers.r{rows}.n{count}"
            figures |= {
                f"{prefix}.rps": load.rps,
                f"{prefix}.errors": load.errors,
                f"{prefix}.load_cpu": load.load_cpu,
                f"{prefix}.server_cpu": (cpu_seconds(started.pid) - before) / seconds,
            }
    return figures


def _started_with(workers: int) -> Start:
    def start(env: Environment, models: Sequence[Model], folder: Path, ports: Ports) -> Command:
        command = start_pilotlight(env, models, folder, ports)
        return replace(command, argv=[*command.argv, "--workers", str(workers)])

    return start
