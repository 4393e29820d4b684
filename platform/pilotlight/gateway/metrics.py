"""The gateway's /metrics: what reports told, summed up by route and revision, in Prometheus' text format."""

from collections.abc import Iterable, Iterator

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
from pilotlight.gateway.messages import BackendReport, Report
from pilotlight.gateway.table import Route, Table
from pilotlight.wire import prometheus_text

Series = tuple[str, str, str]  # namespace, route, revision


class Totals:
    """One revision behind one route, since this gateway started."""

    __slots__ = (
        "buckets", "cold_starts", "errors", "held", "held_s", "in_flight", "latency_s", "lost", "refused", "waiting",
    )  # fmt: skip

    def __init__(self) -> None:
        self.waiting = self.in_flight = self.held = self.refused = self.errors = self.cold_starts = self.lost = 0
        self.held_s = self.latency_s = 0.0
        self.buckets = [0] * (len(LATENCY_BUCKETS) + 1)

    def add(self, told: BackendReport) -> None:
        self.waiting, self.in_flight = told.waiting, told.in_flight
        self.held += told.held
        self.refused += told.refused
        self.errors += told.errors
        self.cold_starts += told.cold_starts
        self.lost += told.lost
        self.held_s += told.held_s
        self.latency_s += told.latency_s
        for place, number in enumerate(told.latencies):
            self.buckets[place] += number


class Metrics:
    """Series of revisions that left the table leave the page, so that years of deploys do not fill it."""

    def __init__(self) -> None:
        self._totals: dict[Series, Totals] = {}
        self._refused: dict[tuple[str, str, str], int] = {}  # namespace, route, reason

    def add(self, report: Report) -> None:
        for totals in self._totals.values():
            totals.waiting = totals.in_flight = 0
        for told in report.backends:
            self._totals.setdefault((told.namespace, told.name, told.revision), Totals()).add(told)

    def refused(self, route: Route, reason: str) -> None:
        key = (route.namespace, route.name, reason)
        self._refused[key] = self._refused.get(key, 0) + 1

    def follow(self, table: Table) -> None:
        known = {(route.namespace, route.name, each.revision) for route in table.routes for each in route.backends}
        routes = {(route.namespace, route.name) for route in table.routes}
        self._totals = {key: totals for key, totals in self._totals.items() if key in known}
        self._refused = {key: number for key, number in self._refused.items() if key[:2] in routes}

    def page(self) -> tuple[int, str, bytes]:
        return 200, prometheus_text.CONTENT_TYPE, "".join(f"{line}\n" for line in self._lines()).encode()

    def _lines(self) -> Iterator[str]:
        everyone = [(_labels(*key), totals) for key, totals in sorted(self._totals.items())]
        yield from _head(METRIC_GATEWAY_WAITING, "gauge", "Requests that wait for a replica.")
        yield from (f"{METRIC_GATEWAY_WAITING}{{{labels}}} {totals.waiting}" for labels, totals in everyone)
        yield from _head(METRIC_GATEWAY_IN_FLIGHT, "gauge", "Requests that a replica has.")
        yield from (f"{METRIC_GATEWAY_IN_FLIGHT}{{{labels}}} {totals.in_flight}" for labels, totals in everyone)
        yield from _head(METRIC_GATEWAY_HELD, "summary", "Time that requests waited for a replica.")
        for labels, totals in everyone:
            yield f"{METRIC_GATEWAY_HELD}_sum{{{labels}}} {totals.held_s:.6f}"
            yield f"{METRIC_GATEWAY_HELD}_count{{{labels}}} {totals.held}"
        yield from _head(METRIC_GATEWAY_DURATION, "histogram", "Time that replicas took to answer.")
        for labels, totals in everyone:
            yield from _histogram(labels, totals)
        yield from _head(METRIC_GATEWAY_ERRORS, "counter", "Answers of 500 and above, and requests without an answer.")
        yield from (f"{METRIC_GATEWAY_ERRORS}{{{labels}}} {totals.errors}" for labels, totals in everyone)
        yield from _head(METRIC_GATEWAY_LOST, "counter", "Requests whose replica ended without an answer.")
        yield from (f"{METRIC_GATEWAY_LOST}{{{labels}}} {totals.lost}" for labels, totals in everyone)
        yield from _head(METRIC_GATEWAY_COLD_STARTS, "counter", "Requests that waited for a replica to start.")
        yield from (f"{METRIC_GATEWAY_COLD_STARTS}{{{labels}}} {totals.cold_starts}" for labels, totals in everyone)
        yield from _head(METRIC_GATEWAY_REFUSED, "counter", "Requests that the gateway itself turned away.")
        for (namespace, name, reason), number in sorted(self._turned_away().items()):
            labels = prometheus_text.labels({LABEL_NAMESPACE: namespace, LABEL_SERVICE: name, "reason": reason})
            yield f"{METRIC_GATEWAY_REFUSED}{{{labels}}} {number}"

    def _turned_away(self) -> dict[tuple[str, str, str], int]:
        """By the gate, and for want of a replica."""
        found = dict(self._refused)
        for (namespace, name, _), totals in self._totals.items():
            if totals.refused:
                key = (namespace, name, "no_replica")
                found[key] = found.get(key, 0) + totals.refused
        return found


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
    return prometheus_text.labels({LABEL_NAMESPACE: namespace, LABEL_SERVICE: name, LABEL_REVISION: revision})
