"""Reports and /metrics.

Periodic reports of the data plane's counters: every second while there are requests.

The gateway's /metrics: reports summed up by route and revision, in the Prometheus text format.

Log of the gateway in the schema of the predictors: JSON lines on stderr.
"""

import asyncio
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import json

from pilotlight.contract import (
    LABEL_NAMESPACE,
    LABEL_REVISION,
    LABEL_SERVICE,
    LATENCY_BUCKETS,
    METRIC_GATEWAY_COLD_STARTS,
    METRIC_GATEWAY_DURATION,
    METRIC_GATEWAY_ERRORS,
    METRIC_GATEWAY_HELD,
    METRIC_GATEWAY_IN_FLIGHT,
    METRIC_GATEWAY_LOST,
    METRIC_GATEWAY_REFUSED,
    METRIC_GATEWAY_WAITING,
)
from pilotlight.gateway.control_link import BackendReport, Report
from pilotlight.gateway.proxy.data_plane import DataPlane
from pilotlight.gateway.routing_table import Route, Table
from pilotlight.wire import prometheus_text

INTERVAL_S: Final = 1.0


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


Series = tuple[str, str, str]  # namespace, route, revision


class Totals:
    """Totals of one revision of a route, since the gateway started."""

    __slots__ = (
        "buckets", "cold_starts", "errors", "held", "held_s", "in_flight", "latency_s", "lost", "refused", "waiting",
    )  # fmt: skip

    def __init__(self) -> None:
        self.waiting = self.in_flight = self.held = self.refused = self.errors = self.cold_starts = self.lost = 0
        self.held_s = self.latency_s = 0.0
        self.buckets = [0] * (len(LATENCY_BUCKETS) + 1)

    def add(self, report: BackendReport) -> None:
        self.waiting, self.in_flight = report.waiting, report.in_flight
        self.held += report.held
        self.refused += report.refused
        self.errors += report.errors
        self.cold_starts += report.cold_starts
        self.lost += report.lost
        self.held_s += report.held_s
        self.latency_s += report.latency_s
        for index, number in enumerate(report.latencies):
            self.buckets[index] += number


class Metrics:
    """Series by route and revision; those that left the table are dropped, so that their number stays bounded."""

    def __init__(self) -> None:
        self._totals: dict[Series, Totals] = {}
        self._rejected: dict[tuple[str, str, str], int] = {}  # namespace, route, reason

    def add(self, report: Report) -> None:
        for totals in self._totals.values():
            totals.waiting = totals.in_flight = 0
        for backend in report.backends:
            self._totals.setdefault((backend.namespace, backend.name, backend.revision), Totals()).add(backend)

    def rejected(self, route: Route, reason: str) -> None:
        key = (route.namespace, route.name, reason)
        self._rejected[key] = self._rejected.get(key, 0) + 1

    def prune(self, table: Table) -> None:
        known = {(route.namespace, route.name, each.revision) for route in table.routes for each in route.backends}
        routes = {(route.namespace, route.name) for route in table.routes}
        self._totals = {key: totals for key, totals in self._totals.items() if key in known}
        self._rejected = {key: number for key, number in self._rejected.items() if key[:2] in routes}

    def page(self) -> tuple[int, str, bytes]:
        return 200, prometheus_text.CONTENT_TYPE, "".join(f"{line}\n" for line in self._lines()).encode()

    def _lines(self) -> Iterator[str]:
        series = [(_labels(*key), totals) for key, totals in sorted(self._totals.items())]
        yield from _head(METRIC_GATEWAY_WAITING, "gauge", "Requests that wait for a replica.")
        yield from (f"{METRIC_GATEWAY_WAITING}{{{labels}}} {totals.waiting}" for labels, totals in series)
        yield from _head(METRIC_GATEWAY_IN_FLIGHT, "gauge", "Requests that a replica has.")
        yield from (f"{METRIC_GATEWAY_IN_FLIGHT}{{{labels}}} {totals.in_flight}" for labels, totals in series)
        yield from _head(METRIC_GATEWAY_HELD, "summary", "Time that requests waited for a replica.")
        for labels, totals in series:
            yield f"{METRIC_GATEWAY_HELD}_sum{{{labels}}} {totals.held_s:.6f}"
            yield f"{METRIC_GATEWAY_HELD}_count{{{labels}}} {totals.held}"
        yield from _head(METRIC_GATEWAY_DURATION, "histogram", "Time that replicas took to answer.")
        for labels, totals in series:
            yield from _histogram(labels, totals)
        yield from _head(METRIC_GATEWAY_ERRORS, "counter", "Answers of 500 and above, and requests without an answer.")
        yield from (f"{METRIC_GATEWAY_ERRORS}{{{labels}}} {totals.errors}" for labels, totals in series)
        yield from _head(METRIC_GATEWAY_LOST, "counter", "Requests whose replica ended without an answer.")
        yield from (f"{METRIC_GATEWAY_LOST}{{{labels}}} {totals.lost}" for labels, totals in series)
        yield from _head(METRIC_GATEWAY_COLD_STARTS, "counter", "Requests that waited for a replica to start.")
        yield from (f"{METRIC_GATEWAY_COLD_STARTS}{{{labels}}} {totals.cold_starts}" for labels, totals in series)
        yield from _head(METRIC_GATEWAY_REFUSED, "counter", "Requests that the gateway itself turned away.")
        for (namespace, name, reason), number in sorted(self._rejections().items()):
            labels = prometheus_text.format_labels({LABEL_NAMESPACE: namespace, LABEL_SERVICE: name, "reason": reason})
            yield f"{METRIC_GATEWAY_REFUSED}{{{labels}}} {number}"

    def _rejections(self) -> dict[tuple[str, str, str], int]:
        """Count rejections by admission, and those without a replica."""
        rejections = dict(self._rejected)
        for (namespace, name, _), totals in self._totals.items():
            if totals.refused:
                key = (namespace, name, "no_replica")
                rejections[key] = rejections.get(key, 0) + totals.refused
        return rejections


def _head(name: str, kind: str, text: str) -> Iterable[str]:
    return f"# HELP {name} {text}", f"# TYPE {name} {kind}"


def _histogram(labels: str, totals: Totals) -> Iterator[str]:
    below = 0
    for edge, number in zip((*map(str, LATENCY_BUCKETS), "+Inf"), totals.buckets, strict=True):
        below += number
        yield f'{METRIC_GATEWAY_DURATION}_bucket{{{labels},le="{edge}"}} {below}'
    yield f"{METRIC_GATEWAY_DURATION}_sum{{{labels}}} {totals.latency_s:.6f}"
    yield f"{METRIC_GATEWAY_DURATION}_count{{{labels}}} {below}"


def _labels(namespace: str, name: str, revision: str) -> str:
    return prometheus_text.format_labels({LABEL_NAMESPACE: namespace, LABEL_SERVICE: name, LABEL_REVISION: revision})


def log(event: str, message: str, *, level: str = "INFO", **fields: Any) -> None:
    """Write a log line. Never raises: a full disk or a closed pipe must not fail requests."""
    stamp = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    line = {"ts": stamp, "level": level, "event": event, "message": message, "logger": "pilotlight.gateway", **fields}
    with suppress(OSError, ValueError):
        sys.stderr.write(json.encode(line).decode() + "\n")
        sys.stderr.flush()
