"""Latency, errors and requests of revisions from Prometheus, for targets whose gateway does not count them.

A status must not fail or wait because of them: without a response in time they are left out.
"""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from pilotlight.contract import LABEL_NAMESPACE, LABEL_REVISION, LABEL_SERVICE, METRIC_REQUEST_DURATION
from pilotlight.errors import PlatformError
from pilotlight.targets.target import Sample, ServiceStatus

Query = Callable[[str], Sequence[Sample]]
LatencyValues = Mapping[tuple[str, str, str], Mapping[str, float]]  # by (namespace, service, revision)

BY_REVISION: Final = f"{LABEL_NAMESPACE}, {LABEL_SERVICE}, {LABEL_REVISION}"
COUNT: Final = f"{METRIC_REQUEST_DURATION}_count"
FAILED: Final = 'code=~"5.."'
WINDOW: Final = "5m"  # window of RevisionStatus' values
TIMEOUT_S: Final = 2.0
VALUE_LABEL: Final = "figure"  # label that distinguishes the values of the one query


def with_latency(
    statuses: Sequence[ServiceStatus], query: Query, timeout_s: float | None = None
) -> Sequence[ServiceStatus]:
    """Return the statuses with the values of one query, or unchanged without a response in time."""
    if not any(status.revisions for status in statuses):
        return statuses
    samples = within_timeout(lambda: query(promql(statuses)), TIMEOUT_S if timeout_s is None else timeout_s)
    values = parse_samples(samples)
    return [_with_latency(status, values) for status in statuses] if values else statuses


def promql(statuses: Sequence[ServiceStatus]) -> str:
    """Return one query for all values of all revisions, to save round trips."""
    namespaces = _matcher(LABEL_NAMESPACE, sorted({status.namespace for status in statuses}))
    chosen = f"{namespaces},{_matcher(LABEL_SERVICE, sorted({status.name for status in statuses}))}"
    requests = f"sum by ({BY_REVISION}) (increase({COUNT}{{{chosen}}}[{WINDOW}]))"
    failed = f"sum by ({BY_REVISION}) (increase({COUNT}{{{chosen},{FAILED}}}[{WINDOW}]))"
    buckets = f"sum by (le, {BY_REVISION}) (rate({METRIC_REQUEST_DURATION}_bucket{{{chosen}}}[{WINDOW}]))"
    queries = {
        "requests": requests,
        "error_percent": f"100 * ({failed} or 0 * {requests}) / ({requests} > 0)",
        "p50_ms": f"1000 * histogram_quantile(0.5, {buckets})",
        "p99_ms": f"1000 * histogram_quantile(0.99, {buckets})",
    }
    return " or ".join(f'label_replace({each}, "{VALUE_LABEL}", "{name}", "", "")' for name, each in queries.items())


def _matcher(label: str, names: Sequence[str]) -> str:
    """Return a matcher for names, whose only regular expression character is the dot."""
    return f'{label}=~"{"|".join(name.replace(".", "[.]") for name in names)}"'


def parse_samples(samples: Sequence[Sample]) -> LatencyValues:
    values: dict[tuple[str, str, str], dict[str, float]] = {}
    for sample in samples:
        labels = sample.labels
        key = tuple(labels.get(name, "") for name in (LABEL_NAMESPACE, LABEL_SERVICE, LABEL_REVISION))
        if math.isfinite(sample.value):  # a quantile over no requests is NaN
            values.setdefault((key[0], key[1], key[2]), {})[labels.get(VALUE_LABEL, "")] = sample.value
    return values


def _with_latency(status: ServiceStatus, values: LatencyValues) -> ServiceStatus:
    rows = []
    for row in status.revisions:
        if measured := values.get((status.namespace, status.name, row.name)):
            known = {name: measured.get(name) for name in ("p50_ms", "p99_ms", "error_percent")}
            row = replace(row, requests=round(measured.get("requests", 0.0)), **known)
        rows.append(row)
    return replace(status, revisions=tuple(rows))


def within_timeout(query: Callable[[], Sequence[Sample]], timeout_s: float) -> Sequence[Sample]:
    """Run a query in a thread; return nothing if it fails or takes longer than the timeout."""
    samples: list[Sample] = []

    def work() -> None:
        try:
            samples.extend(query())
        except PlatformError:
            return

    thread = threading.Thread(target=work, daemon=True, name="latency-query")
    thread.start()
    thread.join(timeout_s)
    return [] if thread.is_alive() else samples
