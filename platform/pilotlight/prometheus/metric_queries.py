"""PromQL of KEDA triggers: queries of our metrics, guards around any query, and the measure of a query.

A guarded query returns exactly one number, or nothing if the scrape is lost. It returns 0 while the service is idle;
NaN, the quantile of no requests, never reaches the autoscaler.
"""

import re
from typing import Final, Literal

from pilotlight import contract
from pilotlight.prometheus.promql import MAX_CHARACTERS

Kind = Literal[
    "latency", "rps", "concurrency", "queue-depth", "gpu-utilization", "tokens-in-queue", "kv-cache",
    "time-to-first-token",
]  # fmt: skip
OF_GATEWAY: Final = ("tokens-in-queue", "time-to-first-token")  # metrics of the gateway, for any engine
OF_ENGINES: Final = ("kv-cache",)  # metrics of the engines below
KV_CACHE: Final = (  # a ratio; the first that an engine has
    "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage", "llamacpp:kv_cache_usage_ratio",
)  # fmt: skip
Measure = Literal["level", "total"]
WINDOW: Final = "2m"
QUANTILE: Final = "0.95"

# A level does not depend on the number of replicas; a total is divided among them.
MEASURES: Final[dict[str, Measure]] = {
    "latency": "level",
    "gpu-utilization": "level",
    "rps": "total",
    "concurrency": "total",
    "queue-depth": "total",
    "tokens-in-queue": "total",
    "kv-cache": "level",
    "time-to-first-token": "level",
}

# Names of times and ratios, which do not shrink when more replicas share the work.
_LEVEL: Final = re.compile(
    r"quantile|latency|duration|_seconds|time_to_first|inter_token|time_per_output|utili[sz]ation|_ratio\b|percent|_perc\b",
    re.IGNORECASE,
)
_COUNTERS: Final = re.compile(r"\b\w+_(?:count|total)\b", re.IGNORECASE)
_SUMS: Final = re.compile(r"\b\w+_sum\b", re.IGNORECASE)
_TOTAL: Final = re.compile(r"\s*\(*\s*(?:sum|count)\b", re.IGNORECASE)


def labels(service: str, namespace: str) -> str:
    return f'{contract.LABEL_SERVICE}="{service}",{contract.LABEL_NAMESPACE}="{namespace}"'


def request_rate(service: str, namespace: str) -> str:
    return f"sum(rate({contract.METRIC_REQUEST_DURATION}_count{{{labels(service, namespace)}}}[{WINDOW}]))"


def metric_query(kind: Kind, service: str, namespace: str) -> str:
    """Return the query of a metric, as one number."""
    chosen = labels(service, namespace)
    buckets = f"sum by (le) (rate({contract.METRIC_REQUEST_DURATION}_bucket{{{chosen}}}[{WINDOW}]))"
    first_tokens = f"sum by (le) (rate({contract.METRIC_FIRST_TOKEN}_bucket{{{chosen}}}[{WINDOW}]))"
    return {
        "latency": f"histogram_quantile({QUANTILE}, {buckets})",
        "rps": request_rate(service, namespace),
        "concurrency": f"sum({contract.METRIC_IN_FLIGHT}{{{chosen}}})",
        "queue-depth": f"sum({contract.METRIC_QUEUE_DEPTH}{{{chosen}}})",
        "gpu-utilization": f"100 * avg({contract.METRIC_GPU_UTILIZATION}{{{chosen}}})",
        "tokens-in-queue": f"sum({contract.METRIC_TOKENS_WAITING}{{{chosen}}})",
        "kv-cache": f"100 * avg({' or '.join(f'{name}{{{chosen}}}' for name in KV_CACHE)})",
        "time-to-first-token": f"histogram_quantile({QUANTILE}, {first_tokens})",
    }[kind]


def is_level(query: str) -> bool:
    """Return whether a query measures a time or ratio: `x_seconds_sum / x_seconds_count`, not `x_seconds_count`."""
    rest = _COUNTERS.sub("", query)
    return bool(_LEVEL.search(rest if "/" in query else _SUMS.sub("", rest)))


def measure(query: str) -> Measure:
    """Return the measure of a user's query. One that does not sum is averaged over replicas, so it is a level too."""
    return "total" if _TOTAL.match(query) and not is_level(query) else "level"


def guarded(
    query: str, measured: Measure, service: str, namespace: str, *, from_zero: bool, has_request_rate: bool
) -> str:
    """Guard a query. `has_request_rate`: our request rate is available to detect an idle service.

    The line breaks around the query keep a comment in it from disabling the guard.
    """
    one = f"{'avg' if measured == 'level' else 'sum'}(\n{query}\n) >= 0"
    if measured == "level" and has_request_rate:
        one = f"({one}) and on() ({request_rate(service, namespace)} > 0)"
    return f"({one}) or {_idle(service, namespace, from_zero, has_request_rate)}"


def inverted(
    query: str, threshold: str, service: str, namespace: str, *, from_zero: bool, has_request_rate: bool
) -> str:
    """Return `threshold / query`, above 1 when the query is below its threshold; without a result at 0."""
    one = f"{threshold} / (avg(\n{query}\n) > 0)"
    if has_request_rate:
        one = f"({one}) and on() ({request_rate(service, namespace)} > 0)"
    return f"({one}) or {_idle(service, namespace, from_zero, has_request_rate)}"


def _idle(service: str, namespace: str, from_zero: bool, has_request_rate: bool) -> str:
    """Return the value of an idle service. At zero replicas nothing is scraped; above, a lost scrape must be an error.

    Our predictor labels its metrics itself; `up` has the service's name only through a ServiceMonitor or PodMonitor.
    """
    alive = contract.METRIC_IN_FLIGHT if has_request_rate else "up"
    return "vector(0)" if from_zero else f"(0 * sum({alive}{{{labels(service, namespace)}}}))"


def syntax_problem(query: str) -> str:
    """Return why the query is too long or could break out of its guard, or "". Prometheus checks the rest."""
    if len(query) > MAX_CHARACTERS:
        return f"has more than {MAX_CHARACTERS} characters"
    pairs = {")": "(", "]": "[", "}": "{"}
    stack: list[str] = []
    # Brackets and unclosed quotes; the pattern consumes strings and comments without a group.
    for mark in (match[1] for match in _MARK.finditer(query) if match[1]):
        if mark in "([{":
            stack.append(mark)
        elif mark in pairs and (not stack or stack.pop() != pairs[mark]):
            return f"has a {mark} without its {pairs[mark]}"
        elif mark in "\"'`":
            return f"has a text that starts with {mark} and does not end"
    return f"has a {stack[-1]} that is never closed" if stack else "" if query.strip() else "is empty"


_MARK: Final = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|`[^`]*`|#[^\r\n]*|(["\'`(){}\[\]])')
