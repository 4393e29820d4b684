"""Traces of running services: what Prometheus and the history counted, without rounding requests away."""

import asyncio
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from aiohttp import web

from pilotlight.errors import NotFound, UsageError
from pilotlight.simulation.trace import CountTrace, TraceError
from pilotlight.simulation.traces.recorded import history_trace
from pilotlight.simulation.traces.table import read_trace
from pilotlight.targets.local.history.points import RESOLUTIONS, Point, Run, Series, ServiceHistory, service_history

IRIS = Series("default", "iris", "iris-predictor", "iris-predictor-1")
Values = Callable[[str, int], float | None]  # of a query at a time; None: no sample


def recorded(runs: list[Run], requests: dict[int, int]) -> ServiceHistory:
    intervals = {at: {IRIS: Point(count)} for at, count in requests.items()}
    return service_history(intervals, RESOLUTIONS[0], Run(1000, 1030), runs, 0, {"iris-predictor"})


def test_the_history_is_a_trace_of_all_its_requests() -> None:
    trace = history_trace("history:iris", recorded([Run(1000, 1030)], {1000: 7, 1010: 1, 1025: 3}), zeros=False)
    assert (trace.bucket_seconds, trace.counts.tolist()) == (5.0, [7, 0, 1, 0, 0, 3])


def test_times_without_a_platform_are_a_gap() -> None:
    history = recorded([Run(1005, 1010), Run(1020, 1030)], {1005: 7, 1025: 3})
    with pytest.raises(TraceError, match="nothing was recorded from 1970-01-01T00:16Z to 1970-01-01T00:17Z"):
        history_trace("history:iris", history, zeros=False)
    assert history_trace("history:iris", history, zeros=True).counts.tolist() == [7, 0, 0, 0, 3]


def test_a_history_without_requests_is_no_trace() -> None:
    with pytest.raises(NotFound, match="no requests"):
        history_trace("history:iris", recorded([Run(1000, 1030)], {}), zeros=False)


def from_prometheus(values: Values, options: str = "") -> CountTrace:
    """Read a trace from a server that evaluates each query by `values`."""

    async def respond(request: web.Request) -> web.Response:
        form = await request.post()
        query, start, end, step = (form[name] for name in ("query", "start", "end", "step"))
        times = range(int(str(start)), int(str(end)) + 1, int(str(step)))
        pairs = [[at, str(value)] for at in times if (value := values(str(query), at)) is not None]
        data: dict[str, Any] = {"resultType": "matrix", "result": [{"metric": {}, "values": pairs}] if pairs else []}
        return web.json_response({"status": "success", "data": data})

    async def read() -> CountTrace:
        app = web.Application()
        app.router.add_post("/api/v1/query_range", respond)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = quote(f"http://127.0.0.1:{runner.addresses[0][1]}", safe=":/")
        try:
            trace = await asyncio.to_thread(read_trace, f"prometheus:iris?url={url}&hours=1{options}")
        finally:
            await runner.cleanup()
        assert isinstance(trace, CountTrace)
        return trace

    return asyncio.run(read())


def test_increases_of_a_counter_are_requests() -> None:
    queries = []

    def values(query: str, at: int) -> float:
        queries.append(query)
        return 1.25  # extrapolated, as Prometheus does

    trace = from_prometheus(values)
    assert (trace.bucket_seconds, trace.counts.size, trace.requests) == (60.0, 60, 75)
    assert 'inference_service="iris",namespace="default"' in queries[0]


def test_a_service_at_zero_has_no_metrics_and_no_requests() -> None:
    end = int(time.time()) // 60 * 60
    trace = from_prometheus(lambda query, at: 1.0 if query == "count(up)" or at > end - 600 else None)
    assert trace.counts[:-11].tolist() == [0] * (trace.counts.size - 11)
    assert trace.requests == pytest.approx(10, abs=1)


def test_a_time_without_scrapes_is_a_gap() -> None:
    end = int(time.time()) // 60 * 60

    def values(query: str, at: int) -> float | None:
        return None if end - 1200 < at <= end - 600 else 1.0

    with pytest.raises(TraceError, match="nothing was recorded from 20"):
        from_prometheus(values)
    assert from_prometheus(values, "&gaps=zero").requests == pytest.approx(50, abs=1)


def test_a_prometheus_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PILOTLIGHT_PROMETHEUS", raising=False)
    with pytest.raises(UsageError, match="no Prometheus is known"):
        read_trace("prometheus:iris")
    with pytest.raises(NotFound, match="has no requests of default/iris in 1 hours"):
        from_prometheus(lambda query, at: 0.0)
