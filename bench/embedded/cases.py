"""What is measured of the embedded platform: one function per case, from a platform of its own to named figures.

A figure may come several times from one case, such as ten cold starts; the report shows medians.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.embedded import crowd
from bench.embedded.platforms import Platform, cpu_percent, memory_mb, pin, platform, private_mb
from bench.embedded.services import ask, direct, names, through_gateway, write
from bench.load import WARM_UP_S, BenchError, send
from bench.machine import Cores, on_core
from bench.models import Model, iris_payload

CONNECTIONS = 32
SETTLE_S = 1.0  # a predictor that has just answered still imports what only odd requests need
BATCH = 20

Figure = tuple[str, float]


@dataclass(frozen=True, slots=True)
class Bench:
    """`many` and `some` are how many services sleep, and how many are asked at once."""

    work: Path
    model: Model
    cores: Cores
    seconds: float
    rounds: int
    starts: int
    many: int = 200
    some: int = 50

    def home(self, name: str) -> Path:
        return self.work / f"home-{name}"

    def document(self, *services: str, least: int = 0) -> Path:
        return write(self.work / "services.yaml", services, self.model, least)


def gateway(bench: Bench) -> Iterator[Figure]:
    """The same replica asked directly and through the gateway, which shares the load's core."""
    with on_core(bench.cores.load), platform(bench.home("gateway")) as made:
        made.deploy(bench.document("iris", least=1))
        pid, port = made.replica("iris")
        pin(pid, bench.cores.server)
        ways = {
            "direct": direct(port, "iris", bench.model, bench.work),
            "gateway": through_gateway(made.gateway, "iris", bench.model, bench.work),
        }
        for target in ways.values():
            send(target, CONNECTIONS, WARM_UP_S, bench.cores)
        for _ in range(bench.rounds):
            one = {way: send(target, 1, bench.seconds, bench.cores) for way, target in ways.items()}
            many = {way: send(target, CONNECTIONS, bench.seconds, bench.cores) for way, target in ways.items()}
            for way in ways:
                yield f"{way}.c1.p50_ms", one[way].p50_ms
                yield f"{way}.c{CONNECTIONS}.rps", many[way].rps
                yield f"{way}.c{CONNECTIONS}.p99_ms", many[way].p99_ms
                yield f"{way}.errors", one[way].errors + many[way].errors
            yield "gateway.added_p50_ms", one["gateway"].p50_ms - one["direct"].p50_ms
            yield "gateway.kept_percent", 100 * many["gateway"].rps / many["direct"].rps


def cold_start(bench: Bench) -> Iterator[Figure]:
    """First byte of a service at zero, in turns on a platform with a pilot light and on one without."""
    services = names("cold", bench.starts + 1)
    payload = iris_payload(bench.model)
    with platform(bench.home("lit")) as lit, platform(bench.home("plain"), pilot_light=False) as plain:
        for made in (lit, plain):
            made.deploy(bench.document(*services))
            made.sleep()
            ask(made.gateway, services[0], payload)  # the first request after a start, and what lights the pilot light
        yield "cold.pilot_light_mb", memory_mb([lit.pilot_light()])
        for service in services[1:]:
            for way, made in (("pilot", lit), ("plain", plain)):
                time.sleep(SETTLE_S)
                answered = ask(made.gateway, service, payload)
                if answered.held_ms is None:
                    raise BenchError(f"{service} was not at zero: its answer tells of no cold start")
                yield f"cold.{way}_s", answered.seconds
        time.sleep(SETTLE_S)
        for way, made in (("pilot", lit), ("plain", plain)):
            for service in services[1:]:
                yield f"cold.{way}_replica_mb", private_mb(made.replica(service)[0])


def deploying(bench: Bench) -> Iterator[Figure]:
    """`platformctl deploy` of a new service until it says Ready, with the platform running."""
    with platform(bench.home("deploy")) as made:
        made.deploy(bench.document("first"))
        made.pilot_light()
        for service in names("deployed", bench.starts):
            time.sleep(SETTLE_S)
            yield "deploy.ready_s", made.deploy(bench.document(service))


def sleeping(bench: Bench) -> Iterator[Figure]:
    """What many services at zero cost, and how fairly some of them share the machine once all are asked."""
    services = names("many", bench.many)
    with platform(bench.home("many")) as made:
        yield "zero.none_mb", memory_mb(made.control_pids())
        for first in range(0, len(services), BATCH):
            made.deploy(bench.document(*services[first : first + BATCH]))
            made.sleep()
        time.sleep(SETTLE_S)
        pids = made.control_pids()
        yield "zero.services", made.asleep()
        yield "zero.cpu_percent", cpu_percent(pids, 10 * bench.seconds)
        yield "zero.memory_mb", memory_mb(pids)
        yield from _sharing(bench, made, services[: bench.some])


def _sharing(bench: Bench, made: Platform, services: list[str]) -> Iterator[Figure]:
    payload = iris_payload(bench.model)
    with ThreadPoolExecutor(4) as wakers:
        list(wakers.map(lambda service: ask(made.gateway, service, payload), services))
    time.sleep(SETTLE_S)
    yield "crowd.services", len(services)
    for _ in range(bench.rounds):
        shares = crowd.load(made.gateway, services, payload, 2 * bench.seconds)
        counts = [share.answers for share in shares]
        yield "crowd.fairness", crowd.fairness_index(counts)
        yield "crowd.least_percent", 100 * crowd.least_share(counts)
        yield "crowd.rps", sum(counts) / (2 * bench.seconds)
        yield "crowd.errors", sum(share.errors for share in shares)


def commands(bench: Bench) -> Iterator[Figure]:
    """What a person waits for at the command line, where no platform is needed."""
    one = bench.document("iris")
    thousand = write(bench.work / "thousand.yaml", names("service", 1000), bench.model)
    for _ in range(bench.rounds):
        yield "cli.help_s", _timed("--help")
        yield "cli.render_s", _timed("render", "-f", str(one))
        yield "cli.render_thousand_s", _timed("render", "-f", str(thousand))


def _timed(*arguments: str) -> float:
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "platformctl", *arguments], capture_output=True, check=False)
    if done.returncode:
        raise BenchError(f"platformctl {arguments[0]} ended with {done.returncode}: {done.stderr[-300:]!r}")
    return time.perf_counter() - started


CASES: Mapping[str, Callable[[Bench], Iterator[Figure]]] = {
    "gateway": gateway,
    "cold": cold_start,
    "deploy": deploying,
    "zero": sleeping,
    "commands": commands,
}
