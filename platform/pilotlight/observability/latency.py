"""Latency, errors and requests of revisions, from a Prometheus, for a target whose gateway does not count them.

A look at a service must not fail or wait because of its figures: without an answer in time they are left out.
"""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from pilotlight.contract import LABEL_NAMESPACE, LABEL_REVISION, LABEL_SERVICE, METRIC_REQUEST_DURATION
from pilotlight.errors import PlatformError
from pilotlight.targets.target import RevisionStatus, Sample, ServiceStatus

Query = Callable[[str], Sequence[Sample]]
Figures = Mapping[tuple[str, str, str], Mapping[str, float]]  # of (namespace, service, revision)

WINDOW: Final = "5m"  # as RevisionStatus says of its figures
PATIENCE_S: Final = 2.0
FIGURE: Final = "figure"  # the label by which one query answers for all of them
BY: Final = f"{LABEL_NAMESPACE}, {LABEL_SERVICE}, {LABEL_REVISION}"
COUNT: Final = f"{METRIC_REQUEST_DURATION}_count"
FAILED: Final = 'code=~"5.."'


def measured(
    statuses: Sequence[ServiceStatus], query: Query, patience_s: float | None = None
) -> Sequence[ServiceStatus]:
    """With the figures that one query finds; as they were where nobody can be asked, or nobody answers in time."""
    if not any(status.revisions for status in statuses):
        return statuses
    found = figures(_in_time(lambda: query(promql(statuses)), PATIENCE_S if patience_s is None else patience_s))
    return [_with(status, found) for status in statuses] if found else statuses


def promql(statuses: Sequence[ServiceStatus]) -> str:
    """All figures of all revisions at once: asking is what takes time."""
    chosen = ",".join(
        (
            _among(LABEL_NAMESPACE, sorted({status.namespace for status in statuses})),
            _among(LABEL_SERVICE, sorted({status.name for status in statuses})),
        )
    )
    asked = f"sum by ({BY}) (increase({COUNT}{{{chosen}}}[{WINDOW}]))"
    failed = f"sum by ({BY}) (increase({COUNT}{{{chosen},{FAILED}}}[{WINDOW}]))"
    buckets = f"sum by (le, {BY}) (rate({METRIC_REQUEST_DURATION}_bucket{{{chosen}}}[{WINDOW}]))"
    told = {
        "requests": asked,
        "error_percent": f"100 * ({failed} or 0 * {asked}) / ({asked} > 0)",
        "p50_ms": f"1000 * histogram_quantile(0.5, {buckets})",
        "p99_ms": f"1000 * histogram_quantile(0.99, {buckets})",
    }
    return " or ".join(f'label_replace({each}, "{FIGURE}", "{name}", "", "")' for name, each in told.items())


def _among(label: str, names: Sequence[str]) -> str:
    """Names of objects have no mark that a pattern takes for its own but the dot."""
    return f'{label}=~"{"|".join(name.replace(".", "[.]") for name in names)}"'


def figures(samples: Sequence[Sample]) -> Figures:
    found: dict[tuple[str, str, str], dict[str, float]] = {}
    for sample in samples:
        labels = sample.labels
        key = tuple(labels.get(name, "") for name in (LABEL_NAMESPACE, LABEL_SERVICE, LABEL_REVISION))
        if math.isfinite(sample.value):  # a quantile over no requests is none
            found.setdefault((key[0], key[1], key[2]), {})[labels.get(FIGURE, "")] = sample.value
    return found


def _with(status: ServiceStatus, found: Figures) -> ServiceStatus:
    rows = [_told(row, found.get((status.namespace, status.name, row.name), {})) for row in status.revisions]
    return replace(status, revisions=tuple(rows))


def _told(row: RevisionStatus, figures: Mapping[str, float]) -> RevisionStatus:
    if not figures:
        return row
    known = {name: figures.get(name) for name in ("p50_ms", "p99_ms", "error_percent")}
    return replace(row, requests=round(figures.get("requests", 0.0)), **known)


def _in_time(ask: Callable[[], Sequence[Sample]], patience_s: float) -> Sequence[Sample]:
    """In a thread that nobody waits for any longer than that."""
    answer: list[Sample] = []

    def work() -> None:
        try:
            answer.extend(ask())
        except PlatformError:
            return

    thread = threading.Thread(target=work, daemon=True, name="asks for figures")
    thread.start()
    thread.join(patience_s)
    return [] if thread.is_alive() else answer
