"""A repository whose model tells which process answered, and what tests ask of a server with several workers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.onnx_models import write_python
from tests.serving import RunningServer, json_tensor

# Nobody is answered while a file `held` lies in the model's folder.
PID = """
import os
import time

HELD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "held")
INPUTS = {"seconds": ("FP32", [1])}
OUTPUTS = {"pid": ("INT64", [1])}


def predict(seconds):
    import numpy as np

    if seconds[0] < 0:
        raise SystemExit
    time.sleep(float(seconds[0]))
    while os.path.exists(HELD):
        time.sleep(0.01)
    return {"pid": np.array([os.getpid()])}
"""


def write_pid(repository: Path, name: str = "pid", source: str = PID, config: str = "") -> Path:
    write_python(repository, name, source, config)
    return repository


def seconds(value: float) -> dict[str, Any]:
    return {"inputs": [json_tensor("seconds", "FP32", [1], [value])]}


def pid_of(server: RunningServer, model: str = "pid") -> int:
    """Who answers a request on a connection of its own."""
    answer = server.infer(model, seconds(0))
    assert answer.status == 200, answer.body
    return int(answer.json()["outputs"][0]["data"][0])


def pids_of(server: RunningServer, requests: int, model: str = "pid") -> set[int]:
    return {pid_of(server, model) for _ in range(requests)}


def workers(server: RunningServer) -> list[dict[str, Any]]:
    """None while nobody can answer for all of them yet, which is a 503."""
    document = server.get("/status").json()
    rows: list[dict[str, Any]] = document.get("workers") or []
    return rows


def wait_for_all(server: RunningServer, count: int = 2, other_than: int = 0) -> list[int]:
    """The pids of all workers once each is on the port; `other_than` waits until that process is replaced."""
    rows: list[dict[str, Any]] = []

    def all_there() -> bool:
        rows[:] = workers(server)
        return len(rows) == count and all(row["ready"] and row["pid"] != other_than for row in rows)

    server.wait_until(all_there, "complete")
    pids = [int(row["pid"]) for row in rows]
    _logged(server, lambda line: line["event"] == "worker.ready" and line["pid"] in pids, count)
    return pids


def _logged(server: RunningServer, wanted: Callable[[dict[str, Any]], bool], count: int) -> None:
    server.wait_until(lambda: sum(map(wanted, server.log())) >= count, "complete on the port")


def count_of(server: RunningServer, metric: str) -> float:
    """The sum of a metric's series in a scrape."""
    text = server.get("/metrics").body.decode()
    found = [line.rsplit(" ", 1) for line in text.splitlines() if line.partition("{")[0].partition(" ")[0] == metric]
    return sum(float(value) for _, value in found)
