"""The benchmark of simulations: pods' events as cold starts and replica-seconds, its documents, tables and bars."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pytest
from aiohttp import web
from bench.cluster.pod_lifetimes import Lifetime, PodEvent, lifetimes, listed, usage
from bench.cluster.scalers import HURRY
from bench.cluster.simulated import (
    MODES,
    PATH,
    WINDOW_S,
    MeasuredStart,
    Subject,
    document,
    measured,
    predicted,
    profile,
    scenario,
    watched,
)
from bench.cluster.simulated import predicted_again as cluster_predicted_again
from bench.readme import newest_result
from bench.simulation import (
    BARS,
    ON_CLUSTER,
    SUBJECT,
    TRACES,
    cluster_tables,
    compare,
    missed,
    predicted_again,
    trace_of,
)
from tests.app_in_thread import in_thread
from tests.cluster.real_cluster import Cluster
from tests.eventually import eventually

from pilotlight.simulation.trace import Trace
from pilotlight.targets.local.scaling.types import Hpa, Kpa

RESULTS = Path(__file__).parents[2] / "bench" / "results"


def test_a_pod_is_a_replica_from_its_creation_to_its_deletion() -> None:
    events = [
        PodEvent(1.0, "ADDED", "a"), PodEvent(2.0, "MODIFIED", "a"), PodEvent(5.0, "ADDED", "b"),
        PodEvent(8.0, "DELETED", "a"), PodEvent(9.0, "ADDED", "b"),  # the watch has reconnected
    ]  # fmt: skip
    assert lifetimes(events) == [Lifetime("a", 1.0, 8.0), Lifetime("b", 5.0, float("inf"))]


def test_a_list_tells_what_a_watch_has_missed() -> None:
    events = [PodEvent(1.0, "ADDED", "a"), PodEvent(2.0, "ADDED", "b"), PodEvent(3.0, "DELETED", "b")]
    assert listed(events, {"c"}, 5.0) == [PodEvent(5.0, "ADDED", "c"), PodEvent(5.0, "DELETED", "a")]
    assert listed(events, {"a"}, 5.0) == []


def test_only_what_falls_into_the_trace_counts() -> None:
    pods = [Lifetime("old", 0.0, 12.0), Lifetime("within", 15.0, 18.0), Lifetime("left", 25.0, float("inf"))]
    found = usage(pods, 10.0, 20.0)
    assert found == {"cold_starts": 2.0, "replica_seconds": 2.0 + 3.0 + 5.0}
    assert usage([Lifetime("later", 31.0, 40.0)], 10.0, 20.0) == {"cold_starts": 0.0, "replica_seconds": 0.0}


def test_a_cold_start_is_what_its_request_took_longer() -> None:
    found = profile([MeasuredStart(5.25, 0.25, 0.8), MeasuredStart(6.25, 0.27, 0.9), MeasuredStart(0.2, 0.25, 0.7)])
    assert found.service_times.samples == (0.25, 0.27, 0.25)
    assert found.cold_starts["process"].totals == (5.0, 6.0, 0.0)
    assert found.cold_starts["process"].cpu_s == 0.8


@pytest.mark.parametrize("mode", MODES)
def test_the_simulated_cluster_has_the_settings_of_the_real_one(mode: str, tmp_path: Path) -> None:
    simulated = scenario(mode, tmp_path)
    assert document(mode)["spec"]["predictor"]["maxReplicas"] == 4
    if mode == "knative":
        assert isinstance(simulated.scaling, Kpa)
        assert simulated.activator
        assert (simulated.scaling.window_s, simulated.scaling.max_scale, simulated.drain_s) == (WINDOW_S, 4, 30.0)
    else:
        assert isinstance(simulated.scaling, Hpa)
        assert (simulated.scaling.cooldown_s, simulated.scaling.polling_s) == (
            HURRY["cooldownPeriod"], HURRY["pollingInterval"],
        )  # fmt: skip
        assert (simulated.scaling.min_replicas, simulated.scaling.max_replicas) == (0, 4)
        assert (simulated.tick_s, simulated.external_push) == (HURRY["pollingInterval"], True)
    assert not simulated.notes


@pytest.mark.parametrize("mode", MODES)
def test_a_cluster_is_compared_as_the_platform_is(mode: str) -> None:
    def predict(trace: object) -> dict[str, float]:
        return dict(predicted(mode, 2, profile([MeasuredStart(5.25, 0.25, 0.8)] * 3), trace_of("sparse")))

    figures = predict(None)
    assert figures["requests"] == trace_of("sparse").requests
    assert figures["p99"] > 4
    exact = compare({"sparse": [figures]}, predict)
    assert missed(exact) == 0
    assert missed(compare({"sparse": [{**figures, "p99": 2 * figures["p99"]}]}, predict)) == 1
    page = cluster_tables({"modes": {mode: {"traces": exact}}})
    assert "(+0%)" in page
    assert "| sparse | 8 |" in page
    assert "[" not in page
    spread = compare({"sparse": [figures, figures, {**figures, "p50": 0.1}]}, predict)
    p50 = f"{figures['p50']:.3g}"
    assert f" {p50} [0.1–{p50}] → {p50} (+0%) |" in cluster_tables({"modes": {mode: {"traces": spread}}})


class Api:
    """Of a cluster: the watch on its pods. Of a service: a response after `SECONDS`, the first one after a start."""

    SECONDS, START_S = 0.02, 0.5

    def __init__(self) -> None:
        self.pods: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self.names: set[str] = set()
        self.calls = 0

    async def list_or_watch(self, request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            items = [{"metadata": {"name": name}} for name in self.names]
            return web.json_response({"apiVersion": "v1", "kind": "PodList", "items": items, "metadata": {}})
        response = web.StreamResponse()
        await response.prepare(request)
        end = asyncio.get_running_loop().time() + float(request.query["timeoutSeconds"])
        while (left := end - asyncio.get_running_loop().time()) > 0:
            try:
                kind, name = await asyncio.wait_for(self.pods.get(), left)
            except TimeoutError:
                break
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "bench"}}
            await response.write(json.dumps({"type": kind, "object": pod}).encode() + b"\n")
        return response

    async def infer(self, request: web.Request) -> web.Response:
        assert request.headers["Host"] == "nap.bench.example"
        self.calls += 1
        if self.calls == 1:
            self.names.add("nap-1")
            await self.pods.put(("ADDED", "nap-1"))
            await asyncio.sleep(self.START_S)
        await asyncio.sleep(self.SECONDS)
        return web.json_response({})

    async def zero(self, _: web.Request) -> web.Response:
        self.names.remove("nap-1")
        await self.pods.put(("DELETED", "nap-1"))
        self.calls = 0
        return web.Response()


@pytest.fixture
def api() -> Iterator[str]:
    made = Api()
    app = web.Application()
    app.router.add_get("/api/v1/namespaces/bench/pods", made.list_or_watch)
    app.router.add_post(PATH, made.infer)
    app.router.add_post("/zero", made.zero)
    with in_thread(app) as url:
        yield url


def test_a_trace_is_measured_by_its_responses_and_the_pods_that_were_heard_of(api: str, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    context = {"name": "bed", "context": {"cluster": "bed", "user": "bed"}}
    kubeconfig.write_text(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "bed", "contexts": [context],
        "clusters": [{"name": "bed", "cluster": {"server": api}}], "users": [{"name": "bed", "user": {}}],
    }))  # fmt: skip
    trace = Trace(np.array([0.0, 1.0, 1.1]), duration=2.0)
    with watched(Cluster(kubeconfig, "kubectl", api, api, "example"), "bench") as events:
        subject = Subject("knative", api + PATH, {"Host": "nap.bench.example"}, events)
        found = measured(subject, trace)
        assert (found["cold_starts"], found["requests"]) == (1, 3)
        assert found["replica_seconds"] == pytest.approx(2.0, abs=0.3)
        assert found["p50"] < 0.5 < found["p99"]
        urlopen(Request(f"{api}/zero", method="POST")).close()
        eventually(lambda: lifetimes(events)[0].deleted < float("inf"), "the deletion", 10)


def test_traces_are_short_enough_for_a_run_on_a_cluster_within_an_hour() -> None:
    """Six traces, three runs of both modes in turns: one returns to zero while the other has its trace."""
    seconds = [trace_of(name).seconds for name in TRACES]
    assert max(seconds) <= 240
    assert 3 * len(MODES) * sum(each + 15 for each in seconds) <= 3600


def test_the_published_prediction_is_that_of_this_simulation_and_within_its_bars() -> None:
    published = json.loads(newest_result(RESULTS, SUBJECT).read_text())
    again = predicted_again(published)
    assert missed(again["traces"]) == 0
    assert_same_predictions(again["traces"], published["traces"])


def test_the_published_prediction_for_a_cluster_is_that_of_this_simulation() -> None:
    """No figure is off by more than 40 %; replica-seconds by no more than 12.5 % from one of the runs."""
    published = json.loads(newest_result(RESULTS, ON_CLUSTER).read_text())
    again = cluster_predicted_again(published)
    assert set(again["modes"]) == set(MODES)
    for mode, each in again["modes"].items():
        assert_same_predictions(each["traces"], published["modes"][mode]["traces"])
        for row in each["traces"].values():
            assert all(abs(error) <= 0.4 for error in row["errors"].values())
            assert any(
                abs(row["predicted"]["replica_seconds"] / run["replica_seconds"] - 1) <= 0.125 for run in row["runs"]
            )


def assert_same_predictions(again: dict[str, Any], published: dict[str, Any]) -> None:
    for name, row in published.items():
        for figure in BARS:
            assert again[name]["predicted"][figure] == pytest.approx(row["predicted"][figure], rel=0.01)
