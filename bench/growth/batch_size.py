"""Requests and rows a second against the rows of a request: the small classifier as JSON, 8 connections."""

from collections.abc import Iterator

from bench.growth.curves import Axis, Panel, Point, Setup, outcome
from bench.growth.fit import kept, most
from bench.load import WARM_UP_S, send
from bench.models import MAX_BATCH, iris_payload
from bench.servers import OURS
from bench.subject import Subject, check_answer

STEPS = (1, 2, 4, 8, 16, 32, MAX_BATCH)
CONNECTIONS = 8


def measure(setup: Setup, subject: Subject) -> Iterator[Point]:
    with subject.serving("iris") as server:
        send(subject.target(server, "iris"), CONNECTIONS, WARM_UP_S, setup.cores)
        for rows in setup.steps(STEPS):
            payload = iris_payload(subject.models["iris"], rows)
            check_answer(server.port, "iris", payload)
            load = send(subject.target(server, "iris", payload), CONNECTIONS, setup.seconds, setup.cores)
            yield Point(rows, {"rps": load.rps, "rows_s": load.rps * rows, **outcome(load)})


AXIS = Axis(
    "batch-size",
    "JSON requests of several rows, 8 connections",
    "rows of a request",
    (Panel("rps", "requests/s", kept("requests/s")), Panel("rows_s", "rows/s", most("rows/s"))),
    measure,
    servers=(OURS, "kserve", "mlserver", "triton"),
)
