"""Token usage of a cluster, as a real Prometheus has stored what gateways and engines export."""

import asyncio
import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from tests.eventually import eventually, eventually_async
from tests.judges import prometheus
from tests.judges.gomodules import Unavailable
from tests.judges.verdict import absent
from tests.platform.gateway.bed import Bed, backend, play, route
from tests.platform.gateway.test_token_meter import ADA, CHAT, TOKENS, engine
from tests.ports import free_port

from pilotlight.gateway.auth import AccessAdmission
from pilotlight.gateway.metrics_and_reports import Metrics
from pilotlight.prometheus.client import instant_query, unavailable_reason
from pilotlight.prometheus.token_usage import usage_rows
from pilotlight.targets.target import UsageRow

pytestmark = pytest.mark.timeout(600 + prometheus.FETCH_SECONDS)
MIDNIGHT = int(datetime(2026, 3, 2, tzinfo=UTC).timestamp())
HOUR, MINUTE = 3600, 60
GATEWAY = 'namespace="default",inference_service="llm",model="{model}",caller="{caller}",pod="{pod}"'
Points = Sequence[tuple[float, float]]


@contextmanager
def running(folder: Path, scrape: str = "") -> Iterator[str]:
    """A Prometheus with the blocks of the folder, at an address of its own."""
    configuration = folder / "prometheus.yaml"
    targets = [{"job_name": "gateway", "honor_labels": True, "static_configs": [{"targets": [scrape]}]}]
    configuration.write_text(
        json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": targets if scrape else []})
    )
    address = f"127.0.0.1:{free_port()}"
    command = [
        _program("prometheus"), f"--config.file={configuration}", f"--storage.tsdb.path={folder}/data",
        "--storage.tsdb.retention.time=50y", f"--web.listen-address={address}", "--log.level=error",
    ]  # fmt: skip
    process = subprocess.Popen(command)
    try:
        eventually(lambda: not unavailable_reason(f"http://{address}"), "an answer of Prometheus")
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(60)


def _program(name: str) -> str:
    try:
        return prometheus.program(name)
    except Unavailable as reason:
        absent(reason)


def written(folder: Path, series: dict[str, Points]) -> None:
    """Write counters as blocks, with a sample each minute between their points, in hours of the first day.

    A counter that falls restarts: there are no samples between.
    """
    lines: dict[str, list[str]] = {}
    for name, points in series.items():
        for (start, low), (end, high) in pairwise(points):
            for minute in range(int(start * 60), int(end * 60) if high >= low else 0):
                value = low + (high - low) * (minute / 60 - start) / (end - start)
                line = f"{name} {value} {MIDNIGHT + minute * MINUTE}"
                lines.setdefault(name.partition("{")[0], []).append(line)
    text = "".join(
        f"# TYPE {metric.removesuffix('_total')} counter\n" + "\n".join(samples) + "\n"
        for metric, samples in lines.items()
    )
    (folder / "metrics.txt").write_text(f"{text}# EOF\n")
    blocks = ["tsdb", "create-blocks-from", "openmetrics", str(folder / "metrics.txt"), str(folder / "data")]
    subprocess.run([_program("promtool"), *blocks], check=True, capture_output=True, timeout=120)


def gateway(model: str, caller: str, pod: str, tokens: dict[str, Points], requests: Points) -> dict[str, Points]:
    labels = GATEWAY.format(model=model, caller=caller, pod=pod)
    return {
        **{f'pilotlight_gateway_tokens_total{{{labels},type="{kind}"}}': points for kind, points in tokens.items()},
        f"pilotlight_gateway_model_requests_total{{{labels}}}": requests,
    }


def close(row: UsageRow) -> tuple[object, ...]:
    counts = (pytest.approx(each, rel=0.01) for each in (row.requests, row.prompt, row.cached, row.completion))
    return (row.day, row.namespace, row.service, row.model, row.caller, row.team, *counts)


def test_days_are_summed_over_gateways_and_engines_stand_for_services_that_those_do_not_count(tmp_path: Path) -> None:
    steady = {"prompt": ((2, 0), (26, 2400)), "completion": ((2, 0), (26, 24000)), "cached": ((2, 0), (26, 1200))}
    restarted = {"prompt": ((30, 0), (33, 900), (34, 0), (40, 600)), "completion": ((30, 0), (40, 0))}
    vllm, other = 'namespace="default",inference_service="{}",model_name="{}"', 'namespace="vendor",model_name="qwen"'
    written(tmp_path, {
        **gateway("llm", "search/ada", "a", steady, ((2, 0), (26, 240))),
        **gateway("llm", "search/ada", "b", steady, ((2, 0), (26, 240))),
        **gateway("sql", "", "a", restarted, ((30, 0), (40, 30))),
        f"vllm:prompt_tokens_total{{{vllm.format('llm', 'base')}}}": ((2, 0), (26, 99999)),  # counted by the gateway
        f"vllm:prompt_tokens_total{{{vllm.format('direct', 'qwen')}}}": ((4, 0), (10, 600)),
        f"vllm:generation_tokens_total{{{vllm.format('direct', 'qwen')}}}": ((4, 0), (10, 1200)),
        f'vllm:request_success_total{{finished_reason="stop",{vllm.format("direct", "qwen")}}}': ((4, 0), (10, 60)),
        f"sglang:prompt_tokens_total{{{other}}}": ((30, 0), (40, 500)),
        f"sglang:cached_tokens_total{{{other}}}": ((30, 0), (40, 100)),
        f"sglang:generation_tokens_total{{{other}}}": ((30, 0), (40, 2000)),
        f"sglang:num_requests_total{{{other}}}": ((30, 0), (40, 50)),
    })  # fmt: skip
    with running(tmp_path) as url:
        noon = datetime.fromtimestamp(MIDNIGHT + 46 * HOUR, UTC)
        rows = usage_rows(partial(instant_query, url), date(2026, 3, 1), noon)
    first, second = "2026-03-02", "2026-03-03"
    assert [close(row) for row in rows] == [
        (first, "default", "direct", "qwen", "", "", 60, 600, 0, 1200),
        (first, "default", "llm", "llm", "search/ada", "search", 440, 4400, 2200, 44000),
        (second, "default", "llm", "llm", "search/ada", "search", 40, 400, 200, 4000),
        (second, "default", "llm", "sql", "", "", 30, 1500, 0, 0),
        (second, "vendor", "", "qwen", "", "", 50, 500, 100, 2000),
    ]


def test_the_first_requests_of_a_caller_are_counted_too(tmp_path: Path) -> None:
    async def case(bed: Bed) -> None:
        metrics = Metrics()
        metrics.tokens.from_zero = True
        bed.plane.observers.append(metrics.tokens.observe)
        bed.plane.pages["metrics"] = metrics.page
        bed.publish(route("llm", backend("llm-1", await bed.origin(engine())), models=("llm",), access=TOKENS))
        body = b'{"model": "llm", "messages": []}'
        for _ in range(4):
            assert (await bed.ask("POST", f"/llm{CHAT}", body, {"Authorization": "Bearer ada"})).status == 200

        def rows() -> list[UsageRow]:
            now = datetime.now(UTC)
            return usage_rows(partial(instant_query, url), now.date(), now)

        async def is_counted() -> bool:
            found = await asyncio.to_thread(rows)
            counts = [
                [each.requests, each.prompt, each.cached, each.completion] for each in found if each.caller == ADA
            ]
            return counts == [pytest.approx([4, 48, 32, 12], rel=0.25)]  # increase() extrapolates a short series

        with running(tmp_path, f"127.0.0.1:{bed.port}") as url:
            await eventually_async(is_counted, "the tokens")

    play(case, AccessAdmission())
