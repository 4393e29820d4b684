"""What autoscalers ask for beside requests: use of CPU and memory, and queries over the replicas' own metrics."""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import cast

import pytest
from tests.platform.targets.local.runs import replica, revision, revision_of, running, service, workload

from pilotlight.canaries.queries import MetricScope, QueryName, metric_queries
from pilotlight.contract import METRIC_FIRST_TOKEN
from pilotlight.gateway.control_link import Report, TokenQueue, TokenReport
from pilotlight.prometheus import metric_queries as trigger_queries
from pilotlight.targets.local.control.metrics_source import MetricsSource
from pilotlight.targets.local.control.replicas import ReplicaSet
from pilotlight.targets.local.control.service_state import ServiceRun, Unit
from pilotlight.targets.local.scaling.types import Hpa, Metric, ScalingRules
from pilotlight.targets.local.supervisor.replica_record import Replica, Usage
from pilotlight.targets.local.supervisor.supervisor import Supervisor
from pilotlight.targets.target import Sample

CPU = Metric("cpu", "cpu", "Utilization", 50)
CORES = Metric("cpu", "cpu", "AverageValue", 0.5)
MEMORY = Metric("memory", "memory", "AverageValue", 1 << 20)


class Watched:
    """A supervisor that knows only what its replicas have used."""

    def __init__(self) -> None:
        self.used: dict[str, Usage] = {}

    def usage(self, name: str) -> Usage:
        return self.used.get(name, Usage())


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Standing:
    """A fleet of replicas that stay."""

    def __init__(self, *replicas: Replica) -> None:
        self.replicas = replicas

    def active(self, run: ServiceRun) -> Sequence[Replica]:
        return self.replicas


def rules(*metrics: Metric, polling_s: float = 1.0) -> Hpa:
    return Hpa(1, 5, metrics, ScalingRules(()), ScalingRules(()), polling_s=polling_s)


def made(*metrics: Metric) -> tuple[MetricsSource, Watched, Unit]:
    watched = Watched()
    unit = Unit("iris-predictor", rules(*metrics), 0.0, cpu_request=0.5)
    return MetricsSource(cast(Supervisor, watched), Clock()), watched, unit


def test_cpu_is_the_mean_over_ready_replicas_in_percent_of_what_they_request() -> None:
    signals, watched, unit = made(CPU)
    pods = [replica(own="a"), replica(own="b"), replica(own="c", state="starting")]
    assert signals.values(unit, pods, 0.0) == {"cpu": None}  # nobody knows yet
    for second in range(1, 12):
        watched.used = {"a": Usage(0.1 * second), "b": Usage(0.3 * second), "c": Usage(9.0 * second)}
        seen = signals.values(unit, pods, float(second))
    assert seen["cpu"] == pytest.approx(40.0)  # 0.2 cores of 0.5


def test_what_a_replica_does_right_after_it_became_ready_is_part_of_its_start() -> None:
    signals, watched, unit = made(CORES)
    rates: list[float | None] = []
    for second in range(15):
        watched.used = {"a": Usage(min(second, 4.0))}
        rates.append(signals.values(unit, [replica(own="a")], float(second))["cpu"])
    assert rates[:10] == [None] * 10
    assert set(rates[10:]) == {0.0}


def test_who_was_not_measured_yet_counts_as_idle_where_there_is_too_much_and_else_as_the_others() -> None:
    signals, watched, unit = made(CPU)
    old, new = replica(own="a"), replica(own="b")
    for second in range(30):
        watched.used = {"a": Usage(0.5 * second), "b": Usage(0.5 * second)}
        alone = signals.values(unit, [old], float(second))["cpu"]
    assert alone == pytest.approx(100.0)
    assert signals.values(unit, [old, new], 29.0)["cpu"] == pytest.approx(max(CPU.target, 50.0))


def test_one_busy_second_counts_as_one_second_of_at_least_five() -> None:
    signals, watched, unit = made(CORES)
    rates: list[float] = []
    for second in range(31):
        watched.used = {"a": Usage(1.0 if second > 20 else 0.0)}
        rate = signals.values(unit, [replica(own="a")], float(second))["cpu"]
        rates += [rate] if rate is not None else []
    assert 0 < max(rates) <= 0.2


def test_memory_is_the_mean_in_bytes_and_nobody_can_tell_it_of_nobody() -> None:
    signals, watched, unit = made(MEMORY)
    watched.used = {"a": Usage(0, 100), "b": Usage(0, 300)}
    assert signals.values(unit, [replica(own="a"), replica(own="b")], 0.0) == {"memory": 200}
    assert signals.values(unit, [replica(own="a", state="starting")], 0.0) == {"memory": None}


def test_a_replica_that_has_ended_leaves_nothing_behind() -> None:
    signals, watched, unit = made(CORES)
    pod = replica(own="a")
    for second in (0.0, 6.0, 12.0):
        watched.used = {"a": Usage(second)}
        signals.values(unit, [pod], second)
    assert signals.values(unit, [pod], 13.0)["cpu"] is not None
    signals.forget(pod)
    assert signals.values(unit, [pod], 14.0) == {"cpu": None}


@asynccontextmanager
async def exporter(text: str) -> AsyncIterator[int]:
    """A replica's /metrics; its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = text.encode()
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(body), body))
            await writer.drain()
        finally:  # also where the loop ends first
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def asking(*queries: str) -> tuple[ServiceRun, Unit]:
    metrics = [
        Metric(f"q{at}", "prometheus", "Value", 1.0, query=query, ignore_null=False) for at, query in enumerate(queries)
    ]
    run = running(service(workload(revision(scaling=rules(*metrics)), mode="raw")))
    return run, run.unit_of(revision_of(run), 0.0)


async def followed(signals: MetricsSource, run: ServiceRun, *replicas: Replica, now: float = 100.0) -> None:
    signals.refresh(cast(ReplicaSet, Standing(*replicas)), [run], now)
    assert signals._refreshing is not None
    await signals._refreshing


def test_queries_are_answered_from_what_ready_replicas_say_of_themselves() -> None:
    async def case() -> None:
        run, unit = asking('sum(pilotlight_queue_depth{inference_service="iris",namespace="default"})')
        async with exporter("pilotlight_queue_depth 3\n") as one, exporter("pilotlight_queue_depth 4\n") as two:
            pods = [replica(own="a", port=one), replica(own="b", port=two), replica(own="c", state="starting")]
            await followed(MetricsSource(cast(Supervisor, Watched()), Clock()), run, *pods)
        assert unit.metrics == {"q0": 7.0}

    asyncio.run(case())


def test_a_query_that_needs_a_prometheus_fails_alone_and_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async def case() -> None:
        clock = Clock()
        signals = MetricsSource(cast(Supervisor, Watched()), clock)
        run, unit = asking("topk(1, pilotlight_queue_depth)", "sum(pilotlight_queue_depth)")
        async with exporter("pilotlight_queue_depth 3\n") as port:
            for _ in range(2):
                await followed(signals, run, replica(own="a", port=port), now=clock.now)
                clock.now += 10.0
        assert unit.metrics == {"q0": None, "q1": 3.0}

    with caplog.at_level(logging.WARNING):
        asyncio.run(case())
    assert [record.message.count("needs --prometheus") for record in caplog.records] == [1]


def test_a_prometheus_that_cannot_be_asked_is_a_failure_that_names_it(caplog: pytest.LogCaptureFixture) -> None:
    async def case() -> None:
        signals = MetricsSource(cast(Supervisor, Watched()), Clock(), "http://127.0.0.1:9")
        run, unit = asking("sum(pilotlight_queue_depth)")
        await followed(signals, run)
        assert unit.metrics == {"q0": None}

    with caplog.at_level(logging.WARNING):
        asyncio.run(case())
    assert "Prometheus at http://127.0.0.1:9 cannot be reached" in caplog.text


def test_a_query_is_asked_again_when_its_interval_has_passed() -> None:
    async def case() -> None:
        clock = Clock()
        signals = MetricsSource(cast(Supervisor, Watched()), clock)
        run, unit = asking("vector(1)")
        await followed(signals, run, now=clock.now)
        unit.metrics["q0"] = -1.0
        await followed(signals, run, now=clock.now + 0.5)
        assert unit.metrics == {"q0": -1.0}
        await followed(signals, run, now=clock.now + 1.0)
        assert unit.metrics == {"q0": 1.0}

    asyncio.run(case())


def test_canaries_ask_a_prometheus_without_its_client_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_api_client", None)

    async def case() -> None:
        async with exporter('{"status": "success", "data": {"resultType": "scalar", "result": [7, "3"]}}') as port:
            signals = MetricsSource(cast(Supervisor, Watched()), Clock(), f"http://127.0.0.1:{port}")
            assert await signals.query("topk(1, pilotlight_queue_depth)", []) == [Sample({}, 3.0, 7.0)]

    asyncio.run(case())


def test_a_metric_that_is_asked_for_the_first_time_is_read_at_once() -> None:
    async def case() -> None:
        signals = MetricsSource(cast(Supervisor, Watched()), Clock())
        async with exporter("pilotlight_queue_depth 3\npilotlight_requests 4\n") as port:
            pods = [replica(own="a", port=port)]
            await signals.query("sum(pilotlight_queue_depth)", pods)
            (found,) = await signals.query("sum(pilotlight_requests)", pods)
        assert found.value == 4.0

    asyncio.run(case())


def test_tokens_that_wait_and_the_time_to_the_first_are_known_from_the_gateway() -> None:
    """Asked as triggers ask."""
    clock = Clock()
    signals = MetricsSource(cast(Supervisor, Watched()), clock)
    run, unit = asking(*(trigger_queries.metric_query(kind, "iris", "default") for kind in trigger_queries.OF_GATEWAY))
    fast = (0,) * 9 + (20,) + (0,) * 9  # within 0.5 s

    async def case() -> None:
        for second in range(0, 70, 10):
            clock.now = 100.0 + second
            tokens = TokenReport("default", "iris", "iris", "", first_token=fast)
            signals.count_tokens(Report(1.0, (), (tokens,), (TokenQueue("default", "iris", 700),)))
            await followed(signals, run, now=clock.now)
        waiting, first_token = unit.metrics["q0"], unit.metrics["q1"]
        assert waiting == 700
        assert first_token == pytest.approx(0.25 + 0.25 * 0.95)
        clock.now += 10
        signals.count_tokens(Report(1.0))
        await followed(signals, run, now=clock.now)
        assert unit.metrics["q0"] == 0

    asyncio.run(case())


def test_what_a_dying_replica_lost_is_known_from_the_gateway() -> None:
    """Asked as canaries ask; the replica itself can tell nothing any more."""
    clock = Clock()
    signals, side = MetricsSource(cast(Supervisor, Watched()), clock), MetricScope("default", "iris", "iris-2", 60.0)

    async def asked(question: QueryName) -> list[float]:
        return [each.value for each in await signals.query(metric_queries(side)[question], [])]

    async def case() -> None:
        signals.count_lost(("default", "iris"), "iris-2", 2)
        assert await asked("lost") == [2]
        clock.now += 50.0
        signals.count_lost(("default", "iris"), "iris-2", 3)
        signals.count_lost(("default", "iris"), "iris-1", 9)
        assert await asked("lost") == [5]
        clock.now += 30.0
        assert (await asked("lost"), await asked("lost before")) == ([5], [2])

    asyncio.run(case())


def test_counts_of_a_deleted_service_are_not_those_of_its_successor() -> None:
    signals = MetricsSource(cast(Supervisor, Watched()), Clock())
    side = MetricScope("default", "iris", "iris-1", 60.0)
    first_tokens = f"sum({METRIC_FIRST_TOKEN}_bucket)"
    lost = metric_queries(side)["lost"]
    fast = (20,) + (0,) * 18

    async def case() -> None:
        await signals.query(first_tokens, [])
        for name in ("iris", "other"):
            signals.count_lost(("default", name), "iris-1", 2)
            tokens = TokenReport("default", name, name, "", first_token=fast)
            signals.count_tokens(Report(1.0, (), (tokens,), (TokenQueue("default", name, 700),)))
        signals.retain({("default", "other")})
        assert await signals.query(lost, []) == []
        (sample,) = await signals.query(first_tokens, [])
        assert sample.value == 20 * 19  # of one service

    asyncio.run(case())
