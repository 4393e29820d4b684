"""The case of Python clients: ours and Triton's, with numpy arrays, against the same server in one run."""

import json
import subprocess
import sys
from typing import Final

from bench.client_load import CLIENTS
from bench.environments import ROOT
from bench.load import BenchError
from bench.machine import on_core
from bench.servers import OURS
from bench.subject import Figures, Subject

LOADS: Final = (("iris", 1), ("iris", 32), ("image", 8))  # model and concurrent callers
LIMIT_S: Final = 120.0


def python_client(subject: Subject, seconds: float) -> Figures:
    """Requests/s of each client on the load's core, against our server alone; the clients take turns."""
    if subject.server.name != OURS:
        return {}
    figures: Figures = {}
    for model, callers in LOADS:
        prefix = f"python_client.{model}.c{callers}"
        with subject.serving(model) as server:
            for client in CLIENTS:
                figures[f"{prefix}.{client}_rps"] = _measure(subject, client, server.port, model, callers, seconds)
        figures[f"{prefix}.factor"] = figures[f"{prefix}.pilotlight_rps"] / figures[f"{prefix}.triton_rps"]
    return figures


def _measure(subject: Subject, client: str, port: int, model: str, callers: int, seconds: float) -> float:
    command = [sys.executable, "-m", "bench.client_load", client, str(port), model, str(callers), str(seconds)]
    with on_core(subject.cores.load):
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=LIMIT_S + seconds, check=False)
    if done.returncode:
        raise BenchError(f"the client {client} failed: {done.stderr.strip()[-300:]}")
    return float(json.loads(done.stdout.splitlines()[-1])["rps"])
