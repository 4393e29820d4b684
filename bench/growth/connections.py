"""Requests a second against connections: the small classifier as JSON, every connection with one request under way."""

from collections.abc import Iterator

from bench.growth.curves import Axis, Panel, Point, Setup, outcome
from bench.growth.fit import kept, most
from bench.load import WARM_UP_S, send
from bench.servers import OURS
from bench.subject import Subject

STEPS = (1, 4, 16, 64, 256, 1024)


def measure(setup: Setup, subject: Subject) -> Iterator[Point]:
    with subject.serving("iris") as server:
        target = subject.target(server, "iris")
        send(target, 16, WARM_UP_S, setup.cores)
        for connections in setup.steps(STEPS):
            load = send(target, connections, setup.seconds, setup.cores)
            yield Point(connections, {"rps": load.rps, "p99_ms": load.p99_ms, **outcome(load)})


AXIS = Axis(
    "connections",
    "JSON requests to a small model against connections",
    "connections",
    (Panel("rps", "requests/s", most("requests/s")), Panel("p99_ms", "p99, ms", kept("p99, ms", 2))),
    measure,
    servers=(OURS, "kserve", "mlserver", "triton"),
)
