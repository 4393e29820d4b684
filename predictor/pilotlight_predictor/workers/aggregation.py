"""Answers and scrapes of all workers as one.

Merging of the workers' Prometheus scrapes. Pure.

Counters and histograms are summed, and gauges of what each worker holds (requests, parked bytes). Of other gauges, such
as load times or the machine's GPU, CPU and memory, the maximum is taken. Parses what `metrics.exposition` writes.

Merging of the workers' responses to one request. Pure.

Errors of single workers, such as a new one without all models, are dropped unless all responses are errors.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pilotlight.contract import METRIC_IN_FLIGHT, METRIC_PARKED_BYTES, METRIC_PARKED_MODELS, METRIC_QUEUE_DEPTH
from pilotlight.wire.prometheus_text import number
from pilotlight_predictor.workers.channel import WorkerResponse

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

Number = int | float


class Scrape:
    """Metric families in their order: header lines, whether they are summed, and series by labels."""

    def __init__(self) -> None:
        self.headers: dict[str, list[str]] = {}
        self.summed: dict[str, bool] = {}
        self.counts: dict[str, bool] = {}
        self.series: dict[str, dict[str, Number]] = {}
        self.ends = False

    def add(self, text: str, *, departed: bool = False) -> None:
        """Add a scrape; of a `departed` worker, counters stay counted and gauges are dropped."""
        family = ""
        for line in text.split("\n"):
            if line.startswith("# TYPE "):
                family = self._family(*line.split(" ", 3)[2:])
            if line.startswith("#"):
                self._header(line)
            elif line and not (departed and not self.counts[family]):
                self._sample(family, *line.rsplit(" ", 1))

    def _family(self, name: str, kind: str) -> str:
        self.counts[name] = kind != "gauge" and name not in OF_THE_MACHINE
        self.summed[name] = self.counts[name] or name in SUMMED_GAUGES
        self.series.setdefault(name, {})
        return name

    def _header(self, line: str) -> None:
        if line == EOF:
            self.ends = True
            return
        lines = self.headers.setdefault(line.split(" ", 3)[2], [])
        if not any(known.split(" ", 2)[1] == line.split(" ", 2)[1] for known in lines):
            lines.append(line)

    def _sample(self, family: str, series: str, written: str) -> None:
        values, value = self.series[family], _number(written)
        known = values.get(series)
        values[series] = value if known is None else known + value if self.summed[family] else max(known, value)

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
    scrape = Scrape()
    for text in departed:
        scrape.add(text, departed=True)
    scrape.ends = False
    return scrape.text()


def _number(written: str) -> Number:
    try:
        return int(written)
    except ValueError:
        return float(written)


NO_WORKER: Final = WorkerResponse(503, b'{"error":"no worker can answer yet"}', headers={"Retry-After": "1"})
TIMED_OUT: Final = WorkerResponse(503, b'{"error":"a worker did not answer in time"}', headers={"Retry-After": "1"})
SERVING: Final = frozenset({"READY", "PARKED"})
Row = dict[str, Any]


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
        merged: Any = _statistics(documents.values())
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


def _statistics(documents: Iterable[Row]) -> Row:
    merged: dict[tuple[str, str], Row] = {}
    for document in documents:
        for row in document["model_stats"]:
            known = merged.get((row["name"], row["version"]))
            merged[row["name"], row["version"]] = _added(known, row) if known else row
    return {"model_stats": [merged[key] for key in sorted(merged)]}


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
            total[key] = _batches([*a, *b])
        elif isinstance(a, dict):
            total[key] = _added(a, b)
        else:
            total[key] = a + b if isinstance(a, int) and key != "batch_size" else a
    return total


def _batches(rows: Iterable[Row]) -> list[Row]:
    sizes: dict[int, Row] = {}
    for row in rows:
        known = sizes.get(row["batch_size"])
        sizes[row["batch_size"]] = _added(known, row) if known else row
    return [sizes[size] for size in sorted(sizes)]


def _index(documents: Mapping[int, Sequence[Row]]) -> list[Row]:
    """Merge repository indexes: a version is READY if it is in all workers; other states name their worker."""
    merged: dict[tuple[str, str], list[tuple[int, Row]]] = {}
    for number, rows in documents.items():
        for row in rows:
            merged.setdefault((row["name"], row.get("version", "")), []).append((number, row))
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


def _status(documents: Mapping[int, Row], roster: Sequence[Row]) -> Row:
    """Merge statuses: ready if one worker is, since only ready workers take connections."""
    status = next((document for document in documents.values() if document["ready"]), next(iter(documents.values())))
    shown = ("state", "ready", "reason", "in_flight")
    unknown = {"state": "initializing", "ready": False, "reason": "", "in_flight": 0}
    workers = [{**row, **{key: documents.get(row["worker"], unknown)[key] for key in shown}} for row in roster]
    return {
        **status,
        "models": _index({number: document["models"] for number, document in documents.items()}),
        "in_flight": sum(document["in_flight"] for document in documents.values()),
        "parked_bytes": sum(document.get("parked_bytes", 0) for document in documents.values()),
        "workers": workers,
    }
