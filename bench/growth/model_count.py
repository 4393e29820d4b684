"""Requests a second against the number of loaded models, which are asked in turn by 32 connections."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from bench.growth.curves import Axis, Panel, Point, Setup, outcome
from bench.growth.fit import kept
from bench.load import WARM_UP_S, send
from bench.processes import Running
from bench.servers import OURS
from bench.subject import Subject, infer_path

STEPS = (1, 10, 100, 1000)
PEERS_LIMIT = {"kserve": 100, "mlserver": 100, "triton": 10}  # Triton's Python backend has a process for each model
CONNECTIONS = 32


def steps_of(setup: Setup, subject: Subject) -> list[int]:
    limit = PEERS_LIMIT.get(subject.server.name, STEPS[-1])
    return [count for count in setup.steps(STEPS) if count <= limit]


@contextlib.contextmanager
def copies_serving(subject: Subject, count: int) -> Iterator[tuple[Running, list[str]]]:
    """A fresh server with so many copies of the small classifier, each of which has answered."""
    iris, payload = subject.models["iris"], subject.payloads["iris"]
    names = [f"iris{number:04d}" for number in range(count)]
    models = {name: replace(iris, name=name) for name in names}
    with replace(subject, models=models, payloads=dict.fromkeys(names, payload)).serving(*names) as server:
        yield server, names


def measure(setup: Setup, subject: Subject) -> Iterator[Point]:
    for count in steps_of(setup, subject):
        with copies_serving(subject, count) as (server, names):
            first = subject.target(server, names[0], subject.payloads["iris"])
            target = replace(first, paths=tuple(infer_path(name) for name in names))
            send(target, CONNECTIONS, WARM_UP_S, setup.cores)
            load = send(target, CONNECTIONS, setup.seconds, setup.cores)
            yield Point(count, {"rps": load.rps, "p99_ms": load.p99_ms, **outcome(load)})


AXIS = Axis(
    "models",
    "JSON requests to all models in turn, 32 connections",
    "loaded models",
    (Panel("rps", "requests/s", kept("requests/s")), Panel("p99_ms", "p99, ms", kept("p99, ms", 2))),
    measure,
    servers=(OURS, "kserve", "mlserver", "triton"),
)
