"""Token usage by day from a Prometheus server, for `platformctl usage` on a cluster.

The gateway's counters have the caller. Services that it does not count are taken from the counters of vLLM and SGLang,
which have the model only. The time is an argument.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Final, NamedTuple

from pilotlight.contract import LABEL_NAMESPACE, LABEL_SERVICE, METRIC_MODEL_REQUESTS, METRIC_TOKENS
from pilotlight.targets.target import Sample, UsageRow
from pilotlight.wire.service_access import team_of

Query = Callable[[str], Sequence[Sample]]
Counts = dict[str, float]  # by the names of COUNTS
COUNTS: Final = ("requests", "prompt", "cached", "completion")
ENGINES: Final[Mapping[str, tuple[str, ...]]] = {  # the first that an engine has
    "requests": ("vllm:request_success_total", "sglang:num_requests_total"),
    "prompt": ("vllm:prompt_tokens_total", "sglang:prompt_tokens_total"),
    "cached": ("vllm:prefix_cache_hits_total", "sglang:cached_tokens_total"),
    "completion": ("vllm:generation_tokens_total", "sglang:generation_tokens_total"),
}


class Counted(NamedTuple):
    """What is counted by itself; `caller` is empty where engines count."""

    day: str
    namespace: str
    service: str
    model: str
    caller: str = ""


def usage_rows(query: Query, since: date, now: datetime) -> list[UsageRow]:
    """Return the totals from a day (UTC) on. Raise PlatformError of `query`."""
    days = list(_days(since, now))
    rows = {key: counts for day, window in days for key, counts in _gateway(query, day, window).items()}
    counted = {(key.namespace, key.service) for key in rows}
    for day, window in days:
        found = _engines(query, day, window).items()
        rows |= {key: counts for key, counts in found if not _is_counted(key, counted)}
    return [_row(key, counts) for key, counts in sorted(rows.items()) if any(round(each) for each in counts.values())]


def _row(key: Counted, counts: Counts) -> UsageRow:
    requests, prompt, cached, completion = (round(counts.get(name, 0.0)) for name in COUNTS)
    return UsageRow(*key, requests, prompt, cached, completion, team_of(key.caller))


def _is_counted(key: Counted, counted: set[tuple[str, str]]) -> bool:
    """Whether the gateway counts a service; pods that a monitor of others scrapes have no label of theirs."""
    if key.service:
        return (key.namespace, key.service) in counted
    return any(namespace == key.namespace for namespace, _ in counted)


def _days(since: date, now: datetime) -> Iterator[tuple[str, str]]:
    """Yield each day with the window of it that is over: a range and its end."""
    start = datetime(since.year, since.month, since.day, tzinfo=UTC)
    while start < now:
        end = min(start + timedelta(days=1), now)
        seconds = max(1, int((end - start).total_seconds()))
        yield start.date().isoformat(), f"[{seconds}s] @ {int(end.timestamp())}"
        start += timedelta(days=1)


def _gateway(query: Query, day: str, window: str) -> dict[Counted, Counts]:
    labels = (LABEL_NAMESPACE, LABEL_SERVICE, "model", "caller")
    tokens = query(_increase(METRIC_TOKENS, window, *labels, "type"))
    requests = query(_increase(METRIC_MODEL_REQUESTS, window, *labels))
    found: dict[Counted, Counts] = {}
    for sample in (*tokens, *requests):
        found.setdefault(_counted(day, sample, labels), {})[sample.labels.get("type", "requests")] = sample.value
    return found


def _engines(query: Query, day: str, window: str) -> dict[Counted, Counts]:
    labels = (LABEL_NAMESPACE, LABEL_SERVICE, "model_name")
    found: dict[Counted, Counts] = {}
    for count, names in ENGINES.items():
        for sample in query(" or ".join(_increase(name, window, *labels) for name in names)):
            found.setdefault(_counted(day, sample, labels), {})[count] = sample.value
    return found


def _increase(metric: str, window: str, *labels: str) -> str:
    return f"sum by ({', '.join(labels)}) (increase({metric}{window}))"


def _counted(day: str, sample: Sample, labels: Sequence[str]) -> Counted:
    return Counted(day, *(sample.labels.get(name, "") for name in labels))
