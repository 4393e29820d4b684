"""The gateway's /metrics: what reports told, summed up by route and revision, in Prometheus' text format."""

from collections.abc import Iterable, Iterator
from typing import Final

from pilotlight.contract import (
    LABEL_NAMESPACE,
    LABEL_REVISION,
    LABEL_SERVICE,
    LATENCY_BUCKETS,
    METRIC_GATEWAY_DURATION,
    METRIC_GATEWAY_HELD,
    METRIC_GATEWAY_IN_FLIGHT,
    METRIC_GATEWAY_REFUSED,
    METRIC_GATEWAY_WAITING,
)
from pilotlight.gateway.messages import BackendReport, Report
from pilotlight.gateway.table import Route, Table

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
Series = tuple[str, str, str]  # namespace, route, revision
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Totals:
    """One revision behind one route, since this gateway started."""

    __slots__ = ("buckets", "held", "held_s", "in_flight", "latency_s", "refused", "waiting")

    def __init__(self) -> None:
        self.waiting = self.in_flight = self.held = self.refused = 0
        self.held_s = self.latency_s = 0.0
        self.buckets = [0] * (len(LATENCY_BUCKETS) + 1)

    def add(self, told: BackendReport) -> None:
        self.waiting, self.in_flight = told.waiting, told.in_flight
        self.held += told.held
        self.refused += told.refused
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
        return 200, CONTENT_TYPE, "".join(f"{line}\n" for line in self._lines()).encode()

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
        yield from _head(METRIC_GATEWAY_REFUSED, "counter", "Requests that the gateway itself turned away.")
        for (namespace, name, reason), number in sorted(self._turned_away().items()):
            labels = f'{LABEL_NAMESPACE}="{_escaped(namespace)}",{LABEL_SERVICE}="{_escaped(name)}",reason="{reason}"'
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
    values = {LABEL_NAMESPACE: namespace, LABEL_SERVICE: name, LABEL_REVISION: revision}
    return ",".join(f'{label}="{_escaped(value)}"' for label, value in values.items())


def _escaped(value: str) -> str:
    return value.translate(_ESCAPES)
