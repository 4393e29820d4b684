"""Requests a second against the size of a binary tensor, by a model that gives back three numbers of it."""

from collections.abc import Iterator

from bench.growth.curves import Axis, Panel, Point, Setup, outcome
from bench.growth.fit import kept, most
from bench.load import WARM_UP_S, send
from bench.models import wide_payload
from bench.servers import OURS
from bench.subject import Subject, check_answer

STEPS = tuple(1024 * 4**power for power in range(8))  # bytes: 1 KiB to 16 MiB
PEER_LIMIT = 1 << 20  # KServe makes a Python list of every tensor
CONNECTIONS = 2


def measure(setup: Setup, subject: Subject) -> Iterator[Point]:
    slow = subject.server.name == "kserve"
    with subject.serving("wide") as server:
        for size in setup.steps(STEPS):
            if slow and size > PEER_LIMIT:
                return
            payload = wide_payload(subject.models["wide"], size // 4)
            check_answer(server.port, "wide", payload)
            target = subject.target(server, "wide", payload)
            if size == STEPS[0]:
                send(target, CONNECTIONS, WARM_UP_S, setup.cores)
            load = send(target, CONNECTIONS, setup.seconds, setup.cores)
            yield Point(size, {"rps": load.rps, "mb_s": load.rps * len(payload.body) / 1e6, **outcome(load)})


AXIS = Axis(
    "tensor-size",
    "binary tensors, 2 connections",
    "bytes of the tensor",
    (Panel("rps", "requests/s", kept("requests/s")), Panel("mb_s", "MB/s", most("MB/s"))),
    measure,
    servers=(OURS, "kserve", "triton"),
)
