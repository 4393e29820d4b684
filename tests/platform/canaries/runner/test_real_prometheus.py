"""A real Prometheus beside the embedded platform judges: what it has scraped decides, not what the platform saw."""

import asyncio
import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import ClientSession
from tests.embedded import Platform, load
from tests.engines.vllm_engine import VllmEngine
from tests.eventually import eventually_async
from tests.judges import prometheus
from tests.judges.gomodules import Unavailable
from tests.judges.verdict import absent
from tests.platform.canaries.runner.conftest import ASK, CHECKS, Call, better, current, iris, worse

from pilotlight.canaries.queries import MetricScope, Missing, display_queries, single_value
from pilotlight.errors import PlatformError
from pilotlight.prometheus.client import query_prometheus
from pilotlight.spec.canary_policy import parse_policy
from pilotlight.wire.machine import free_port

pytestmark = pytest.mark.long
GUIDE = Path(__file__).parents[4] / "docs/how-to/canary.md"
PROVE = (
    "--steps", "30,100", "--bake", "10s", "--interval", "3s", "--min-requests", "20", "--keep-stable", "1s",
    "--timeout", "120", *CHECKS,
)  # fmt: skip


@pytest.fixture(scope="module")
def program() -> str:
    try:
        return prometheus.program("prometheus")
    except Unavailable as reason:
        absent(reason)


@pytest.fixture(scope="module")
def watched(program: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    with Platform(tmp_path_factory.mktemp("watched") / "home", flags=("--prometheus", program)) as running:
        running.deploy(iris())
        running.wait_phase("Ready")
        yield running
        running.empty()


def test_a_bad_revision_takes_itself_back_and_a_good_one_promotes_itself(
    watched: Platform, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PILOTLIGHT_HOME", str(watched.home.root))
    with load(watched, ASK, clients=1):
        bad = call("canary", "start", "-f", str(worse(tmp_path, "raise ValueError('no')")), *PROVE)
        assert bad.code == 5, bad.err + watched.log()
        assert "error_rate" in current(watched).reason
        good = call("canary", "start", "-f", str(better(tmp_path)), *PROVE)
        assert good.code == 0, good.err + watched.log()
    assert current(watched).phase == "Promoted"
    asked = next(each.query for each in reversed(current(watched).measurements) if each.check == "p50_ms")
    (sample,) = watched.target.query(asked)
    assert 0 < sample.value < 200, "the query that is shown gives the figure"


def test_the_query_of_the_guide_measures_an_engine_by_its_revision(program: str, tmp_path: Path) -> None:
    """Over the metrics of vLLM, with the labels that our monitors add."""
    (block,) = re.findall(r"```yaml\n(spec:\n  canary:\n    promql: \{latency:.*?)```", GUIDE.read_text(), re.DOTALL)
    policy = parse_policy(yaml.safe_load(block)["spec"]["canary"])
    assert (policy.min_requests, [(each.name, each.maximum) for each in policy.checks]) == (0, [("latency", 5)])

    def measured(address: str, revision: str) -> float | Missing:
        queries = display_queries(policy, MetricScope("default", "chat", revision, 10.0), "chat-1")
        return single_value(query_prometheus(address, queries["latency"]), "latency")

    async def case() -> None:
        async with AsyncExitStack() as stack:
            engines = [await stack.enter_async_context(VllmEngine(f"chat-{n}").serving()) for n in (1, 2)]
            jobs = [scrape(engine.name, f"127.0.0.1:{engine.port}") for engine in engines]
            address = stack.enter_context(scraping(program, tmp_path, jobs))
            client = await stack.enter_async_context(ClientSession())
            await eventually_async(lambda: len(found(address, "up == 1")) == 2, "both to be scraped")
            engines[1].open.clear()
            asyncio.get_running_loop().call_later(0.6, engines[1].open.set)
            for engine in engines:
                url = f"http://127.0.0.1:{engine.port}/v1/completions"
                assert (await client.post(url, json={"prompt": "a b"})).status == 200
            values: list[float] = []

            def rates() -> bool:
                answers = [measured(address, engine.name) for engine in engines]
                values[:] = [answer for answer in answers if isinstance(answer, float)]
                return len(values) == len(engines)

            await eventually_async(rates, "a rate of each")
            assert values[0] <= 0.1
            assert 0.5 < values[1] <= 2.0
            assert isinstance(measured(address, "chat-3"), Missing)

    asyncio.run(case())


def found(address: str, query: str) -> Sequence[object]:
    with suppress(PlatformError):  # it is starting
        return query_prometheus(address, query)
    return ()


def scrape(revision: str, address: str) -> dict[str, Any]:
    labels = {"namespace": "default", "inference_service": "chat", "revision": revision}
    return {"job_name": revision, "honor_labels": True, "static_configs": [{"targets": [address], "labels": labels}]}


@contextmanager
def scraping(program: str, folder: Path, jobs: list[dict[str, Any]]) -> Iterator[str]:
    """The address of a Prometheus that scrapes these each second."""
    file, port = folder / "prometheus.yml", free_port()
    file.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": jobs}))
    flags = (f"--config.file={file}", f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}")
    with (folder / "prometheus.log").open("wb") as log, subprocess.Popen([program, *flags], stderr=log) as process:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
