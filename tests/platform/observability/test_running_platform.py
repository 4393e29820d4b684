"""A real Prometheus beside the running platform: it has data for every panel, judges canaries, and tells of them."""

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import ProxyHandler, build_opener

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from msgspec.structs import replace
from tests.embedded import Platform
from tests.platform.canaries.runner.conftest import ASK, CHECKS, better, current, iris, worse
from tests.platform.console.test_routes import Visitor
from tests.platform.observability.queries import PANELS, RULES, expressions, needs_gpu

from pilotlight.api import metrics
from pilotlight.api.target_adapters import BACKEND, TargetBackend
from pilotlight.observability.revision_latency import with_latency
from pilotlight.prometheus.client import query_prometheus
from pilotlight.targets.local import prometheus_process
from pilotlight.targets.target import RevisionStatus
from platformctl import main
from platformctl.doctor import local_checks

KEY = ("default", "iris")
PATIENCE_S = 120.0


def asked(url: str, path: str, **query: str) -> Any:
    """Of Prometheus' HTTP API."""
    address = f"{url}/api/v1/{path}?{urlencode(query)}"
    with build_opener(ProxyHandler({})).open(address, timeout=PATIENCE_S) as answer:
        return json.load(answer)["data"]


def found(url: str, query: str) -> list[Any]:
    return [each for each in asked(url, "query", query=query)["result"] if each["value"][1] != "NaN"]


def drawn(url: str, query: str) -> bool:
    """Whether a panel that shows the last five minutes has a point to draw, as Grafana asks."""
    now = time.time()
    series = asked(url, "query_range", query=query, start=f"{now - 300}", end=f"{now}", step="5")["result"]
    return any(value != "NaN" for each in series for _, value in each["values"])


@pytest.fixture(scope="module")
def shared(prometheus_program: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """It leaves nothing behind, which Platform itself asserts: its Prometheus ends with it."""
    folder = tmp_path_factory.mktemp("observed") / "home"
    with Platform(folder, flags=("--prometheus", prometheus_program)) as made:
        made.deploy(iris())
        made.wait_phase("Ready")
        with visitors(made):
            yield made


@pytest.fixture
def platform(shared: Platform, monkeypatch: pytest.MonkeyPatch) -> Platform:
    monkeypatch.setenv("PILOTLIGHT_HOME", str(shared.home.root))
    return shared


@contextmanager
def visitors(platform: Platform) -> Iterator[None]:
    """Some forty requests a second, until the block ends. What they are answered is another test's business."""
    ending = threading.Event()

    def ask_on() -> None:
        while not ending.wait(0.025):
            with suppress(OSError, HTTPException):
                platform.ask(ASK)

    thread = threading.Thread(target=ask_on)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


@pytest.fixture
def url(platform: Platform) -> str:
    return platform.address.prometheus


@pytest.mark.long  # two minutes of traffic
def test_every_panel_has_data_while_a_good_canary_promotes_itself(
    platform: Platform, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Asked until the last one answers: rates need two scrapes with requests before the second."""
    waiting = {
        (name, panel["title"], each) for name, panel in PANELS if not needs_gpu(panel) for each in expressions(panel)
    }
    document = better(tmp_path)
    pace = ("--steps", "40,100", "--bake", "10s", "--interval", "1s", "--min-requests", "20", "--keep-stable", "1s")
    assert main.run(["canary", "start", "-f", str(document), *pace, *CHECKS, "--no-wait"]) == 0, capsys.readouterr().err
    until = time.monotonic() + PATIENCE_S
    while waiting and time.monotonic() < until:
        waiting.difference_update([each for each in waiting if drawn(url, each[2])])
        time.sleep(0.5)
    assert not waiting, "\n".join(map(str, sorted(waiting)))
    platform.wait(lambda: current(platform).phase == "Promoted", "its promotion", PATIENCE_S)
    judged = [each for each in current(platform).measurements if each.verdict == "Successful"]
    assert {each.check for each in judged} == {"error_rate", "p50_ms"}


def test_a_bad_canary_is_rolled_back_by_what_prometheus_says_and_an_alert_tells_of_it(
    platform: Platform, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = worse(tmp_path, "raise RuntimeError('other weights')")
    pace = ("--steps", "40,100", "--bake", "60s", "--interval", "1s", "--min-requests", "20", "--timeout", "120")
    code = main.run(["canary", "start", "-f", str(document), *pace, *CHECKS])
    assert (code, current(platform).phase) == (5, "RolledBack"), capsys.readouterr().err
    firing = 'ALERTS{alertname="PilotlightCanaryRolledBack",alertstate="firing"}'
    platform.wait(lambda: bool(found(url, firing)), "the alert", PATIENCE_S)
    (alert,) = found(url, firing)
    assert alert["metric"]["revision"] == current(platform).revision


def test_the_queries_of_gpus_are_understood(url: str) -> None:
    gpus = [expression for _, panel in PANELS if needs_gpu(panel) for expression in expressions(panel)]
    assert gpus
    assert all(asked(url, "query", query=each)["resultType"] == "vector" for each in gpus)


def test_a_panel_of_the_console_is_answered_by_the_same_server(platform: Platform) -> None:
    visitor = Visitor(platform.address.port)
    assert visitor.enter(platform.address.token) == 200
    query = "sum(rate(pilotlight_request_duration_seconds_count[$__rate_interval]))"

    def values() -> list[float]:
        status, told = visitor.ask("POST", "/console/api/v1/query_range", {"query": query, "seconds": 900})
        assert (status, told["source"]) == (200, "prometheus")
        return [value for each in told["series"] for value in each["values"] if value]

    platform.wait(lambda: bool(values()), "requests in the range", PATIENCE_S)
    assert visitor.ask("POST", "/console/api/v1/query_range", {"query": "sum("})[0] == 422


def test_the_figures_of_a_cluster_come_from_one_query(platform: Platform, url: str) -> None:
    """As `status` asks it where no gateway of ours counts."""

    def told() -> RevisionStatus:
        (plain,) = platform.target.list(None)
        blank = replace(plain, revisions=tuple(replace(row, p50_ms=None, requests=0) for row in plain.revisions))
        (status,) = with_latency([blank], lambda promql: query_prometheus(url, promql), timeout_s=60)
        return next(each for each in status.revisions if each.percent == 100)

    rows: list[RevisionStatus] = []

    def counted() -> bool:
        rows.append(told())
        return rows[-1].requests > 0

    platform.wait(counted, "requests to be counted", PATIENCE_S)
    row = rows[-1]
    assert row.error_percent is not None
    assert row.p50_ms is not None
    assert row.p99_ms is not None
    assert 0 < row.p50_ms <= row.p99_ms


def test_an_api_beside_any_target_tells_of_its_replicas(platform: Platform) -> None:
    async def page() -> str:
        app = web.Application()
        app[BACKEND] = TargetBackend(platform.target)
        app.router.add_get("/metrics", metrics.metrics)
        async with TestClient(TestServer(app)) as client:
            return await (await client.get("/metrics")).text()

    text = asyncio.run(page())
    assert 'pilotlight_replicas{namespace="default",inference_service="iris"' in text
    assert "pilotlight_scale_signal" not in text


def test_doctor_tells_of_it(platform: Platform, url: str) -> None:
    assert url in local_checks.prometheus(platform.home, platform.address).message


def test_prometheus_finds_everything_by_itself(platform: Platform, url: str) -> None:
    def targets() -> dict[str, dict[str, Any]]:
        return {each["labels"]["job"]: each for each in asked(url, "targets", state="active")["activeTargets"]}

    def as_it_runs() -> bool:
        up = {job: each["labels"] for job, each in targets().items() if each["health"] == "up"}
        running = {row.name for row in platform.status().revisions if row.ready}
        return up.keys() == jobs and up["pilotlight-predictor"]["revision"] in running

    jobs = {"pilotlight-control", "pilotlight-gateway", "pilotlight-predictor"}
    platform.wait(as_it_runs, "what runs to be scraped", PATIENCE_S)
    labels = targets()["pilotlight-predictor"]["labels"]
    assert (labels["namespace"], labels["inference_service"]) == KEY


def test_the_rules_are_loaded_and_none_is_broken(platform: Platform, url: str) -> None:
    def loaded() -> list[Any]:
        return [rule for group in asked(url, "rules")["groups"] for rule in group["rules"]]

    wanted = {each.get("record") or each["alert"] for group in RULES["groups"] for each in group["rules"]}
    platform.wait(lambda: all(each["health"] == "ok" for each in loaded()), "all rules to have been evaluated")
    assert {each["name"] for each in loaded()} == wanted


def test_the_targets_are_told_to_nobody_without_a_token(platform: Platform) -> None:
    opened = build_opener(ProxyHandler({}))
    address = f"http://127.0.0.1:{platform.address.port}"
    with opened.open(f"{address}/metrics", timeout=PATIENCE_S) as answer:
        assert b'pilotlight_replicas{namespace="default"' in answer.read()
    with pytest.raises(OSError, match="401"):
        opened.open(f"{address}/api/v1/scrape_targets", timeout=PATIENCE_S)


def test_it_outlives_the_control_process_and_the_next_one_takes_it_over(platform: Platform, url: str) -> None:
    before = prometheus_process.running(platform.home)
    assert before is not None
    platform.kill_control()
    platform.wait(platform.answers, "another control process")
    assert prometheus_process.running(platform.home) == before
    assert platform.address.prometheus == url


def test_one_that_dies_is_started_again(platform: Platform, url: str) -> None:
    before = prometheus_process.running(platform.home)
    assert before is not None
    os.kill(before.identity.pid, signal.SIGKILL)
    platform.wait(lambda: prometheus_process.running(platform.home) not in (None, before), "another Prometheus")
    platform.wait(lambda: answers(url), "it to answer at the same place")


def answers(url: str) -> bool:
    try:
        return bool(asked(url, "query", query="vector(1)"))
    except OSError:
        return False


def test_what_is_not_installed_is_told_with_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(prometheus_process.PlatformError, match="not installed") as told:
        prometheus_process.find()
    assert "apt-get install prometheus" in told.value.hint
    with pytest.raises(prometheus_process.UsageError, match="must be an address"):
        prometheus_process.find(str(tmp_path / "nothing"))
