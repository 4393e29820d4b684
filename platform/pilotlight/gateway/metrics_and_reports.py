"""Reports of the data plane's counters, every second while there are requests; /metrics with their sums; the log."""

import asyncio
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

from msgspec import json

from pilotlight import contract
from pilotlight.gateway.control_link import BackendReport, Report
from pilotlight.gateway.proxy.data_plane import DataPlane
from pilotlight.gateway.routing_table import Route, Table
from pilotlight.gateway.token_meter import TokenMeter
from pilotlight.k8s.timestamps import utc_now
from pilotlight.observability.bounded_stderr import rotate_stderr
from pilotlight.wire import prometheus_text
from pilotlight.wire.prometheus_text import Family, MetricKind

INTERVAL_S: Final = 1.0
FAMILIES: Final[tuple[tuple[str, MetricKind, str], ...]] = (
    (contract.METRIC_GATEWAY_WAITING, "gauge", "Requests waiting for a replica."),
    (contract.METRIC_GATEWAY_IN_FLIGHT, "gauge", "Requests in flight in replicas."),
    (contract.METRIC_GATEWAY_HELD, "summary", "Queue time of requests in seconds."),
    (contract.METRIC_GATEWAY_DURATION, "histogram", "Response time of replicas in seconds."),
    (contract.METRIC_GATEWAY_ERRORS, "counter", "Responses with status 500 or above, and requests without a response."),
    (contract.METRIC_GATEWAY_LOST, "counter", "Requests whose replica exited without a response."),
    (contract.METRIC_GATEWAY_COLD_STARTS, "counter", "Requests that waited for a cold start."),
    (contract.METRIC_GATEWAY_REJECTED, "counter", "Requests rejected by the gateway."),
    (contract.METRIC_ADAPTER_DURATION, "histogram", "Response time of a LoRA adapter in seconds."),
    (contract.METRIC_ADAPTER_ERRORS, "counter", "Responses of a LoRA adapter with status 500 or above, or none."),
)
Series = tuple[str, str, str]  # namespace, route, revision


class Reporter:
    """Passes every report to `on_report` and non-empty ones to `send`; no timer runs while there are no requests."""

    def __init__(self, plane: DataPlane, on_report: Callable[[Report], None], send: Callable[[Report], None]) -> None:
        self._plane, self._on_report, self._send = plane, on_report, send
        self._timer: asyncio.TimerHandle | None = None
        plane.on_busy = self._start_timer

    def report(self) -> bool:
        """Report now; return whether there were requests since the last report."""
        report = self._plane.report(self._plane.clock())
        self._on_report(report)
        if report.backends:
            self._send(report)
        return bool(report.backends)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self.report():
            self._start_timer()


class Totals:
    """Totals of one revision of a route, since the gateway started."""

    __slots__ = (
        "buckets", "cold_starts", "errors", "held", "held_s", "in_flight", "latency_s", "lost", "rejected", "waiting",
    )  # fmt: skip

    def __init__(self) -> None:
        self.waiting = self.in_flight = self.held = self.rejected = self.errors = self.cold_starts = self.lost = 0
        self.held_s = self.latency_s = 0.0
        self.buckets = [0] * (len(contract.LATENCY_BUCKETS) + 1)

    def add(self, report: BackendReport) -> None:
        self.waiting, self.in_flight = report.waiting, report.in_flight
        self.held += report.held
        self.rejected += report.rejected
        self.errors += report.errors
        self.cold_starts += report.cold_starts
        self.lost += report.lost
        self.held_s += report.held_s
        self.latency_s += report.latency_s
        for index, number in enumerate(report.latencies):
            self.buckets[index] += number


class Metrics:
    """Series by route and revision; those that left the table are dropped, so that their number stays bounded."""

    def __init__(self, logs: Callable[[], Iterable[Family]] = tuple) -> None:
        self._logs = logs
        self._totals: dict[Series, Totals] = {}
        self._adapters: dict[Series, Totals] = {}  # by the engine's name in place of a revision
        self._rejected: dict[tuple[str, str, str], int] = {}  # namespace, route, reason
        self.tokens = TokenMeter()

    def add(self, report: Report) -> None:
        for totals in self._totals.values():
            totals.waiting = totals.in_flight = 0
        for backend in report.backends:
            self._totals.setdefault((backend.namespace, backend.name, backend.revision), Totals()).add(backend)
        for each in report.adapters:
            self._adapters.setdefault((each.namespace, each.name, each.revision), Totals()).add(each)

    def rejected(self, route: Route, reason: str) -> None:
        key = (route.namespace, route.name, reason)
        self._rejected[key] = self._rejected.get(key, 0) + 1

    def prune(self, table: Table) -> None:
        known = {(route.namespace, route.name, each.revision) for route in table.routes for each in route.backends}
        routes = {(route.namespace, route.name) for route in table.routes}
        self._totals = {key: totals for key, totals in self._totals.items() if key in known}
        adapters = {(route.namespace, route.name, each.model) for route in table.routes for each in route.adapters}
        self._adapters = {key: totals for key, totals in self._adapters.items() if key in adapters}
        self._rejected = {key: number for key, number in self._rejected.items() if key[:2] in routes}
        self.tokens.prune(table)

    def page(self) -> tuple[int, str, bytes]:
        families = (*self._families(), *self._logs())
        text = prometheus_text.render_families(families, with_empty=True)
        text += prometheus_text.render_families(self.tokens.families())
        return 200, prometheus_text.CONTENT_TYPE, text.encode()

    def _families(self) -> Iterable[Family]:
        families = {name: Family(name, kind, text) for name, kind, text in FAMILIES}
        for (namespace, name, revision), totals in sorted(self._totals.items()):
            labels = {
                contract.LABEL_NAMESPACE: namespace,
                contract.LABEL_SERVICE: name,
                contract.LABEL_REVISION: revision,
            }
            families[contract.METRIC_GATEWAY_WAITING].add(totals.waiting, **labels)
            families[contract.METRIC_GATEWAY_IN_FLIGHT].add(totals.in_flight, **labels)
            families[contract.METRIC_GATEWAY_HELD].add_summary(totals.held, totals.held_s, **labels)
            families[contract.METRIC_GATEWAY_DURATION].add_histogram(
                contract.LATENCY_BUCKETS, totals.buckets, totals.latency_s, **labels
            )
            families[contract.METRIC_GATEWAY_ERRORS].add(totals.errors, **labels)
            families[contract.METRIC_GATEWAY_LOST].add(totals.lost, **labels)
            families[contract.METRIC_GATEWAY_COLD_STARTS].add(totals.cold_starts, **labels)
        for (namespace, name, adapter), totals in sorted(self._adapters.items()):
            labels = {contract.LABEL_NAMESPACE: namespace, contract.LABEL_SERVICE: name, "adapter": adapter}
            families[contract.METRIC_ADAPTER_DURATION].add_histogram(
                contract.LATENCY_BUCKETS, totals.buckets, totals.latency_s, **labels
            )
            families[contract.METRIC_ADAPTER_ERRORS].add(totals.errors, **labels)
        for (namespace, name, reason), count in sorted(self._rejections().items()):
            labels = {contract.LABEL_NAMESPACE: namespace, contract.LABEL_SERVICE: name, "reason": reason}
            families[contract.METRIC_GATEWAY_REJECTED].add(count, **labels)
        return families.values()

    def _rejections(self) -> dict[tuple[str, str, str], int]:
        """Count rejections by admission, and those without a replica."""
        rejections = dict(self._rejected)
        for (namespace, name, _), totals in self._totals.items():
            if totals.rejected:
                key = (namespace, name, "no_replica")
                rejections[key] = rejections.get(key, 0) + totals.rejected
        return rejections


def log(event: str, message: str, *, level: str = "INFO", **fields: Any) -> None:
    """Write a log line. Never raises: a full disk or a closed pipe must not fail requests."""
    line = {"ts": utc_now(), "level": level, "event": event, "message": message, "logger": "pilotlight.gateway"}
    rotate_stderr()
    with suppress(OSError, ValueError):
        sys.stderr.write(json.encode(line | fields).decode() + "\n")
        sys.stderr.flush()
