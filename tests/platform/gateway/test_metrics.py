"""The gateway's page of metrics: what reports told, as a real Prometheus parser reads it."""

import asyncio
from pathlib import Path

import msgspec
from prometheus_client.parser import text_string_to_metric_families
from tests.platform.gateway.linked import ask, in_loop, linked, replica, route

from pilotlight.contract import LATENCY_BUCKETS
from pilotlight.gateway.control_link import BackendReport, Report
from pilotlight.gateway.metrics_and_reports import Metrics
from pilotlight.gateway.routing_table import Backend, Route, Table

NAMES = {
    "pilotlight_gateway_requests_waiting": "gauge",
    "pilotlight_gateway_requests_in_flight": "gauge",
    "pilotlight_gateway_request_duration_seconds": "histogram",
    "pilotlight_gateway_held_seconds": "summary",
    "pilotlight_gateway_errors": "counter",
    "pilotlight_gateway_cold_starts": "counter",
    "pilotlight_gateway_requests_lost": "counter",
    "pilotlight_gateway_requests_refused": "counter",
    "pilotlight_adapter_request_duration_seconds": "histogram",
    "pilotlight_adapter_errors": "counter",
}


def samples(page: str) -> dict[tuple[str, str], float]:
    """By name and one label that matters: the edge, the reason, the revision, else the result."""
    found = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            names = ("le", "reason", "adapter", "revision", "result")
            label = next(sample.labels[name] for name in names if name in sample.labels)
            found[sample.name, label] = sample.value
    return found


def told(revision: str = "iris-1", *, waiting: int = 0, in_flight: int = 0, refused: int = 0) -> Report:
    latencies = (0, 2, *[0] * (len(LATENCY_BUCKETS) - 2), 1)
    report = BackendReport(
        "default", "iris", "iris", revision, 1.0, 3, 2, waiting, in_flight, held_s=2.5, held=1, latencies=latencies,
        latency_s=90.5, rejected=refused, cold_starts=1, lost=2,
    )  # fmt: skip
    return Report(1.0, (report,))


def page(metrics: Metrics) -> str:
    status, content_type, body = metrics.page()
    assert (status, content_type) == (200, "text/plain; version=0.0.4; charset=utf-8")
    return body.decode()


def test_every_name_of_the_contract_is_there_with_its_type() -> None:
    metrics = Metrics()
    metrics.add(told())
    metrics.rejected(Route("default", "iris"), "rate")
    families = {family.name: family.type for family in text_string_to_metric_families(page(metrics))}
    assert families == NAMES


def test_a_report_keeps_its_encoded_names_for_other_releases() -> None:
    (encoded,) = msgspec.to_builtins(told(refused=4))["backends"]
    assert encoded["refused"] == 4
    assert "rejected" not in encoded


def test_counts_add_up_over_reports_and_levels_are_the_last() -> None:
    metrics = Metrics()
    metrics.add(told(waiting=5, in_flight=7))
    metrics.add(told(waiting=2, in_flight=3))
    found = samples(page(metrics))
    duration = "pilotlight_gateway_request_duration_seconds"
    assert found["pilotlight_gateway_requests_waiting", "iris-1"] == 2
    assert found["pilotlight_gateway_requests_in_flight", "iris-1"] == 3
    assert [found[f"{duration}_bucket", edge] for edge in ("0.0005", "0.001", "60.0", "+Inf")] == [0, 4, 4, 6]
    assert (found[f"{duration}_count", "iris-1"], found[f"{duration}_sum", "iris-1"]) == (6, 181)
    assert found["pilotlight_gateway_held_seconds_sum", "iris-1"] == 5
    assert found["pilotlight_gateway_held_seconds_count", "iris-1"] == 2
    assert found["pilotlight_gateway_errors_total", "iris-1"] == 4
    assert found["pilotlight_gateway_cold_starts_total", "iris-1"] == 2
    assert found["pilotlight_gateway_requests_lost_total", "iris-1"] == 4


def test_adapters_have_counts_of_their_own_until_they_leave_the_table() -> None:
    metrics = Metrics()
    (report,) = told("law-1f3a9c07").backends
    metrics.add(Report(1.0, adapters=(report,)))
    found = samples(page(metrics))
    assert found["pilotlight_adapter_errors_total", "law-1f3a9c07"] == 2
    assert found["pilotlight_adapter_request_duration_seconds_count", "law-1f3a9c07"] == 3
    assert not any(name.startswith("pilotlight_gateway") for name, _ in found)
    metrics.prune(Table(1, (Route("default", "iris"),)))
    assert samples(page(metrics)) == {}


def test_levels_fall_to_zero_when_a_report_is_empty() -> None:
    metrics = Metrics()
    metrics.add(told(waiting=5, in_flight=7))
    metrics.add(Report(1.0))
    found = samples(page(metrics))
    assert found["pilotlight_gateway_requests_waiting", "iris-1"] == 0
    assert found["pilotlight_gateway_requests_in_flight", "iris-1"] == 0


def test_refusals_are_counted_by_their_reason() -> None:
    metrics = Metrics()
    metrics.add(told(refused=4))
    for reason in ("rate", "rate", "unauthorized"):
        metrics.rejected(Route("default", "iris"), reason)
    found = samples(page(metrics))
    name = "pilotlight_gateway_requests_refused_total"
    assert {reason: found[name, reason] for reason in ("rate", "unauthorized", "no_replica")} == {
        "rate": 2, "unauthorized": 1, "no_replica": 4,
    }  # fmt: skip


def test_a_revision_that_left_the_table_leaves_the_page() -> None:
    metrics = Metrics()
    metrics.add(told("iris-1"))
    metrics.add(told("iris-2"))
    metrics.rejected(Route("default", "gone"), "rate")
    metrics.prune(Table(2, (Route("default", "iris", (Backend("iris-2", "iris", 100),)),)))
    text = page(metrics)
    assert "iris-2" in text
    assert "iris-1" not in text
    assert "gone" not in text


def test_a_name_cannot_break_out_of_its_label() -> None:
    metrics = Metrics()
    metrics.add(told('a"} 1\nb'))
    (family,) = [
        each for each in text_string_to_metric_families(page(metrics)) if each.name.endswith("requests_waiting")
    ]
    assert family.samples[0].labels["revision"] == 'a"} 1\nb'


@in_loop
async def test_a_real_gateways_page_tells_of_requests_at_once(tmp_path: Path) -> None:
    async with linked(tmp_path) as made, replica() as one:
        await made.publish(route(one.config))
        await asyncio.gather(*(ask(made.port, "/iris/") for _ in range(5)))
        assert (await ask(made.port, "/healthz")).status == 200
        assert (await ask(made.port, "/metrics", {"X-Forwarded-For": "203.0.113.9"})).status == 403
        reply = await ask(made.port, "/metrics")
        found = samples(reply.body.decode())
        assert found["pilotlight_gateway_request_duration_seconds_count", "iris-1"] == 5
        assert found["pilotlight_gateway_request_duration_seconds_sum", "iris-1"] > 0
        assert found["pilotlight_audit_records_total", "failed"] == 0
