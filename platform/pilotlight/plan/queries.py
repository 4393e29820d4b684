"""PromQL that a trigger may carry: our own metrics by kind, any other query guarded, and what a query measures.

A guarded query answers with exactly one number, or with nothing when the scrape is lost. While the service idles it
answers 0; NaN, which a quantile over no requests gives, never reaches the autoscaler.
"""

import re
from typing import Final, Literal

from pilotlight.contract import (
    LABEL_NAMESPACE,
    LABEL_SERVICE,
    METRIC_GPU_UTILIZATION,
    METRIC_IN_FLIGHT,
    METRIC_QUEUE_DEPTH,
    METRIC_REQUEST_DURATION,
)

Kind = Literal["latency", "rps", "concurrency", "queue-depth", "gpu-utilization"]
Measure = Literal["level", "total"]
WINDOW: Final = "2m"
QUANTILE: Final = "0.95"

# A level is the same however many replicas share the work; a total is divided among them.
MEASURES: Final[dict[str, Measure]] = {
    "latency": "level",
    "gpu-utilization": "level",
    "rps": "total",
    "concurrency": "total",
    "queue-depth": "total",
}

# Names that tell of a time or a share: what they measure does not shrink when it is divided by replicas.
_LEVEL: Final = re.compile(
    r"quantile|latency|duration|_seconds|time_to_first|inter_token|time_per_output|utili[sz]ation|_ratio\b|percent|_perc\b",
    re.IGNORECASE,
)
_COUNTERS: Final = re.compile(r"\w+_(?:count|total)\b", re.IGNORECASE)
_SUMS: Final = re.compile(r"\w+_sum\b", re.IGNORECASE)
_TOTAL: Final = re.compile(r"\s*\(*\s*(?:sum|count)\b", re.IGNORECASE)


def labels(service: str, namespace: str) -> str:
    return f'{LABEL_SERVICE}="{service}",{LABEL_NAMESPACE}="{namespace}"'


def request_rate(service: str, namespace: str) -> str:
    return f"sum(rate({METRIC_REQUEST_DURATION}_count{{{labels(service, namespace)}}}[{WINDOW}]))"


def own(kind: Kind, service: str, namespace: str) -> str:
    """One of the predictor's metrics as one number."""
    chosen = labels(service, namespace)
    buckets = f"sum by (le) (rate({METRIC_REQUEST_DURATION}_bucket{{{chosen}}}[{WINDOW}]))"
    return {
        "latency": f"histogram_quantile({QUANTILE}, {buckets})",
        "rps": request_rate(service, namespace),
        "concurrency": f"sum({METRIC_IN_FLIGHT}{{{chosen}}})",
        "queue-depth": f"sum({METRIC_QUEUE_DEPTH}{{{chosen}}})",
        "gpu-utilization": f"100 * avg({METRIC_GPU_UTILIZATION}{{{chosen}}})",
    }[kind]


def is_level(query: str) -> bool:
    """Whether its names tell of a time or a share: `x_seconds_sum / x_seconds_count` does, `x_seconds_count` counts."""
    rest = _COUNTERS.sub("", query)
    return bool(_LEVEL.search(rest if "/" in query else _SUMS.sub("", rest)))


def measure(query: str) -> Measure:
    """What an unknown query measures. One that does not sum is averaged over replicas, and then it is a level too."""
    return "total" if _TOTAL.match(query) and not is_level(query) else "level"


def guarded(query: str, measured: Measure, service: str, namespace: str, *, from_zero: bool, counted: bool) -> str:
    """`counted`: our own request rate is there to tell an idle service from a slow one.

    The line ends around the query keep a comment in it from swallowing the guard.
    """
    one = f"{'avg' if measured == 'level' else 'sum'}(\n{query}\n) >= 0"
    if measured == "level" and counted:
        one = f"({one}) and on() ({request_rate(service, namespace)} > 0)"
    return f"({one}) or {_idle(service, namespace, from_zero, counted)}"


def inverted(query: str, threshold: str, service: str, namespace: str, *, from_zero: bool, counted: bool) -> str:
    """`threshold / query`: above 1 when the query falls below its threshold. A query of 0 would divide by zero."""
    one = f"{threshold} / (avg(\n{query}\n) > 0)"
    if counted:
        one = f"({one}) and on() ({request_rate(service, namespace)} > 0)"
    return f"({one}) or {_idle(service, namespace, from_zero, counted)}"


def _idle(service: str, namespace: str, from_zero: bool, counted: bool) -> str:
    """At zero replicas nothing is scraped, and that is no error; above zero a lost scrape must reach the fallback.

    Our predictor labels its metrics itself, however it is scraped; `up` has the service's name only behind a monitor.
    """
    alive = METRIC_IN_FLIGHT if counted else "up"
    return "vector(0)" if from_zero else f"(0 * sum({alive}{{{labels(service, namespace)}}}))"


def mistake(query: str) -> str:
    """Why the query could break out of its guard, or an empty string. Prometheus itself checks the rest."""
    pairs = {")": "(", "]": "[", "}": "{"}
    stack: list[str] = []
    for mark in _marks(query):
        if mark in "([{":
            stack.append(mark)
        elif mark in pairs and (not stack or stack.pop() != pairs[mark]):
            return f"has a {mark} without its {pairs[mark]}"
        elif mark in "\"'`":
            return f"has a text that starts with {mark} and does not end"
    return f"has a {stack[-1]} that is never closed" if stack else "" if query.strip() else "is empty"


_MARK: Final = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|`[^`]*`|#[^\r\n]*|(["\'`(){}\[\]])')


def _marks(query: str) -> list[str]:
    """Brackets and quotes that stand for themselves: not within texts, not in comments."""
    return [found[1] for found in _MARK.finditer(query) if found[1]]
