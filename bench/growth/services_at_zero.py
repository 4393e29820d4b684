"""The gateway against the number of services at zero: what those that sleep cost the one that is asked.

On an embedded platform of its own, one service is awake. The others were ready once and are at zero after a restart;
then the awake one is asked through the gateway, and some of the others are woken. Nothing is pinned.
"""

import statistics
import time
from collections.abc import Iterator

from bench.embedded.platforms import Platform, memory_mb, platform
from bench.embedded.services import ask, names, through_gateway, write
from bench.growth.curves import Axis, Panel, Point, Setup, outcome
from bench.growth.fit import each, kept
from bench.load import BenchError, send
from bench.machine import Cores, busy_share
from bench.models import Model, iris_payload
from bench.subject import Subject

STEPS = (1, 10, 100, 1000)
BATCH = 100  # replicas that are awake at once until the next restart, of 15 MB each
CONNECTIONS = 32
WAKINGS = 3
BUSY = 0.1  # share of the machine that may be in use before anything is measured
REST_S = 60.0  # so long it waits for that: what many deploys and a restart left to do is not what is measured
ANYWHERE = Cores(None, None)
PATIENCE_S = 120.0  # deploying is what takes long; what was reached by then is measured and told


def measure(setup: Setup, subject: Subject) -> Iterator[Point]:
    model, asleep, deployed = subject.models["iris"], names("asleep", STEPS[-1]), 0
    with platform(setup.work / "home-growth") as made:
        made.deploy(write(setup.work / "awake.yaml", ["awake"], model, least=1))
        deadline = time.monotonic() + PATIENCE_S
        for count in setup.steps(STEPS):
            while deployed < count and time.monotonic() < deadline:
                batch = asleep[deployed : min(count, deployed + BATCH)]
                made.deploy(write(setup.work / "asleep.yaml", batch, model))
                made.sleep()
                deployed += len(batch)
            yield Point(deployed, _figures(setup, made, model, asleep[:deployed]))
            if deployed < count:
                raise BenchError(f"{deployed} services were deployed in {PATIENCE_S:.0f} s, so it ends there")


def _figures(setup: Setup, made: Platform, model: Model, asleep: list[str]) -> dict[str, float]:
    payload = iris_payload(model)
    ask(made.gateway, "awake", payload)
    _rest()
    used = memory_mb(made.control_pids())
    target = through_gateway(made.gateway, "awake", model, setup.work)
    one = send(target, 1, setup.seconds, ANYWHERE)
    many = send(target, CONNECTIONS, setup.seconds, ANYWHERE)
    woken = [ask(made.gateway, service, payload).seconds for service in asleep[-WAKINGS:]]
    return {
        "rps": many.rps,
        "p50_ms": one.p50_ms,
        "memory_mb": used,
        "wake_s": statistics.median(woken),
        **outcome(one, many),
    }


def _rest() -> None:
    deadline = time.monotonic() + REST_S
    while busy_share(1.0) > BUSY and time.monotonic() < deadline:
        pass


AXIS = Axis(
    "services",
    "one service through the gateway beside services at zero",
    "services at zero",
    (
        Panel("rps", "requests/s, 32 connections", kept("requests/s")),
        Panel("p50_ms", "p50 of 1 connection, ms", kept("p50, ms", 3)),
        Panel("memory_mb", "memory of gateway and control, MB", each("memory", "MB")),
        Panel("wake_s", "first byte of one at zero, s", kept("first byte, s", 3)),
    ),
    measure,
)
