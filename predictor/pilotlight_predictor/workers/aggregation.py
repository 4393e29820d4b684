"""Merging of the workers' responses to one request, and of their Prometheus scrapes, into one. Pure.

Errors of single workers, such as a new one without all models, are dropped unless all responses are errors.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

from pilotlight.contract import METRIC_IN_FLIGHT, METRIC_PARKED_BYTES, METRIC_PARKED_MODELS, METRIC_QUEUE_DEPTH
from pilotlight.wire.prometheus_text import number
from pilotlight_predictor.workers.parent_channel import WorkerResponse

# Summed as counters and histograms are. Of other gauges, such as load times or memory, the maximum is taken.
SUMMED_GAUGES: Final = frozenset(
    {
        METRIC_IN_FLIGHT,
        METRIC_PARKED_BYTES,
        METRIC_PARKED_MODELS,
        METRIC_QUEUE_DEPTH,
        "nv_inference_pending_request_count",
    }
)
OF_THE_MACHINE: Final = frozenset({"nv_energy_consumption"})  # a counter that all workers read from the same device
EOF: Final = "# EOF"
NO_WORKER: Final = WorkerResponse(503, b'{"error":"no worker can answer yet"}', headers={"Retry-After": "1"})
TIMED_OUT: Final = WorkerResponse(503, b'{"error":"a worker did not answer in time"}', headers={"Retry-After": "1"})
SERVING: Final = frozenset({"READY", "PARKED"})
Number = int | float
Row = dict[str, Any]


class Scrape:
    """Metric families in their order: header lines, whether they count since the start, and series by labels."""

    def __init__(self) -> None:
        self.headers: dict[str, list[str]] = {}
        self.counts: dict[str, bool] = {}
        self.series: dict[str, dict[str, Number]] = {}
        self.ends = False

    def add(self, text: str, *, departed: bool = False) -> None:
        """Add a scrape; of a `departed` worker, counters stay counted and gauges are dropped."""
        family = ""
        for line in text.split("\n"):
            if line == EOF:
                self.ends = self.ends or not departed
            elif line.startswith("#"):
                keyword, name = line.split(" ", 3)[1:3]
                # The counters of departed workers are in the text format; OpenMetrics names a counter without _total.
                family = name.removesuffix("_total") if departed and self.ends else name
                line = line.replace(name, family, 1)
                if keyword == "TYPE":
                    self.counts[family] = not line.endswith(" gauge") and family not in OF_THE_MACHINE
                    self.series.setdefault(family, {})
                lines = self.headers.setdefault(family, [])
                if not any(known.split(" ", 2)[1] == keyword for known in lines):
                    lines.append(line)
            elif line and (self.counts[family] or not departed):
                series, written = line.rsplit(" ", 1)
                values, value = self.series[family], _number(written)
                known = values.get(series)
                summed = self.counts[family] or family in SUMMED_GAUGES
                values[series] = value if known is None else known + value if summed else max(known, value)

    def text(self) -> str:
        lines: list[str] = []
        for family, values in self.series.items():
            if values:
                lines += self.headers[family]
                lines += [f"{series} {number(value)}" for series, value in values.items()]
        return "\n".join([*lines, EOF] if self.ends else lines) + "\n"


def merge_metrics(living: Iterable[str], departed: Sequence[str] = ()) -> str:
    scrape = Scrape()
    for text in living:
        scrape.add(text)
    for text in departed:
        scrape.add(text, departed=True)
    return scrape.text()


def retained_counters(departed: Iterable[str]) -> str:
    """Return the counters of workers that have exited, as one scrape."""
    return merge_metrics((), tuple(departed))


def _number(written: str) -> Number:
    try:
        return int(written)
    except ValueError:
        return float(written)


def merge(
    how: str, responses: Mapping[int, WorkerResponse], departed: str = "", roster: Sequence[Row] = ()
) -> WorkerResponse:
    """Merge responses by worker number; `roster` has a row for each worker, including those without a response."""
    good = {number: response for number, response in responses.items() if response.status == 200}
    if not good:
        return next(iter(responses.values()), NO_WORKER)
    first = next(iter(good.values()))
    if how == "metrics":
        text = merge_metrics((response.body.decode() for response in good.values()), [departed])
        return first._replace(body=text.encode())
    documents = {number: json.loads(response.body) for number, response in good.items()}
    if how == "statistics":
        rows = (row for document in documents.values() for row in document["model_stats"])
        merged: Any = {"model_stats": _summed(rows, itemgetter("name", "version"))}
    elif how == "index":
        merged = _index(documents)
    else:
        merged = _status(documents, roster)
    return first._replace(body=json.dumps(merged, separators=(",", ":")).encode())


def first_failure(responses: Iterable[WorkerResponse]) -> WorkerResponse:
    """Return the first failed response, else the first; plain-text bodies are concatenated."""
    responses = list(responses)
    chosen = next((each for each in responses if each.status != 200), responses[0] if responses else NO_WORKER)
    if chosen.status == 200 and chosen.content_type.startswith("text/plain"):
        return chosen._replace(body=b"\n".join(each.body for each in responses))
    return chosen


def _summed(rows: Iterable[Row], key: Callable[[Row], Any]) -> list[Row]:
    """Return one row for each key, in their order."""
    merged: dict[Any, Row] = {}
    for row in rows:
        known = merged.get(key(row))
        merged[key(row)] = _added(known, row) if known else row
    return [merged[each] for each in sorted(merged)]


def _added(one: Row, other: Row) -> Row:
    """Sum numbers at any depth; the time of the last inference is the latest, batches are matched by size."""
    total: Row = {}
    for key in {**one, **other}:
        a, b = one.get(key), other.get(key)
        if a is None or b is None:
            total[key] = b if a is None else a
        elif key == "last_inference":
            total[key] = max(a, b)
        elif key == "batch_stats":
            total[key] = _summed([*a, *b], itemgetter("batch_size"))
        elif isinstance(a, dict):
            total[key] = _added(a, b)
        else:
            total[key] = a + b if isinstance(a, int) and key != "batch_size" else a
    return total


def _index(documents: Mapping[int, Sequence[Row]]) -> list[Row]:
    """Merge repository indexes: a version is READY if it is in all workers; other states name their worker."""
    merged: dict[tuple[str, str], list[tuple[int, Row]]] = {}
    for worker, rows in documents.items():
        for row in rows:
            merged.setdefault((row["name"], row.get("version", "")), []).append((worker, row))
    agreed = [
        _agreed(rows)
        for _, rows in sorted(merged.items())
        if len(rows) == len(documents) or any(row["state"] not in SERVING for _, row in rows)
    ]
    named = {row["name"] for row in agreed if "version" in row}
    return [row for row in agreed if "version" in row or row["name"] not in named]


def _agreed(rows: Sequence[tuple[int, Row]]) -> Row:
    """Return one row: PARKED only if parked in all workers, since one awake holds its weights on the GPU."""
    states = {row["state"] for _, row in rows}
    if states == {"READY", "PARKED"}:
        return next(row for _, row in rows if row["state"] == "READY")
    number, row = next(((n, r) for n, r in rows if r["state"] not in SERVING), rows[0])
    if len(states) == 1:
        return row
    return {**row, "reason": f"worker {number}: {row['reason'] or row['state']}"}


def _verifications(rows: Iterable[Row]) -> dict[tuple[str, str], Row]:
    """Return what is known of each serving version: one worker that answered verifies it, failures are summed."""
    known: dict[tuple[str, str], Row] = {}
    for row in rows:
        if "verified" in row:
            entry = known.setdefault((row["name"], row["version"]), {"verified": False, "unverified_failures": 0})
            entry["verified"] |= row["verified"]
            entry["unverified_failures"] += row["unverified_failures"]
    return known


def _status(documents: Mapping[int, Row], roster: Sequence[Row]) -> Row:
    """Merge statuses: ready if one worker is, since only ready workers take connections."""
    status = next((document for document in documents.values() if document["ready"]), next(iter(documents.values())))
    shown = ("state", "ready", "reason", "in_flight")
    unknown = {"state": "initializing", "ready": False, "reason": "", "in_flight": 0}
    workers = [{**row, **{key: documents.get(row["worker"], unknown)[key] for key in shown}} for row in roster]
    known = _verifications(row for document in documents.values() for row in document["models"])
    models = _index({number: document["models"] for number, document in documents.items()})
    return {
        **status,
        "verified": status["ready"] and all(each["verified"] for each in known.values()),
        "unverified_failures": sum(each["unverified_failures"] for each in known.values()),
        "models": [{**row, **known.get((row["name"], row.get("version", "")), {})} for row in models],
        "in_flight": sum(document["in_flight"] for document in documents.values()),
        "parked_bytes": sum(document.get("parked_bytes", 0) for document in documents.values()),
        "wake_seconds": max(document.get("wake_seconds", 0.0) for document in documents.values()),
        "workers": workers,
    }
