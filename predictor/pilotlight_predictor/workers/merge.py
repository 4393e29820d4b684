"""The workers' answers to one call → the one answer. Pure.

A worker that knows less than the others (it is polling, or has just come) does not spoil what they say: refusals are
told only when nobody has an answer.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pilotlight_predictor.workers.frames import Answer
from pilotlight_predictor.workers.merge_metrics import merge_metrics

NOBODY: Final = Answer(503, b'{"error":"no worker can answer yet"}', headers={"Retry-After": "1"})
SILENT: Final = Answer(503, b'{"error":"a worker did not answer in time"}', headers={"Retry-After": "1"})
SERVING: Final = frozenset({"READY", "PARKED"})
Row = dict[str, Any]


def merge(how: str, answers: Mapping[int, Answer], departed: str = "", roster: Sequence[Row] = ()) -> Answer:
    """`answers` by the worker's number; `roster` has a row for each worker, also for those that did not answer."""
    good = {number: answer for number, answer in answers.items() if answer.status == 200}
    if not good:
        return next(iter(answers.values()), NOBODY)
    first = next(iter(good.values()))
    if how == "metrics":
        text = merge_metrics((answer.body.decode() for answer in good.values()), [departed])
        return first._replace(body=text.encode())
    documents = {number: json.loads(answer.body) for number, answer in good.items()}
    if how == "statistics":
        merged: Any = _statistics(documents.values())
    elif how == "index":
        merged = _index(documents)
    else:
        merged = _status(documents, roster)
    return first._replace(body=json.dumps(merged, separators=(",", ":")).encode())


def worst(answers: Iterable[Answer]) -> Answer:
    """Of a call that must succeed everywhere: the first that did not, else the first; text is told one by one."""
    told = list(answers)
    chosen = next((answer for answer in told if answer.status != 200), told[0] if told else NOBODY)
    if chosen.status == 200 and chosen.content_type.startswith("text/plain"):
        return chosen._replace(body=b"\n".join(answer.body for answer in told))
    return chosen


def _statistics(documents: Iterable[Row]) -> Row:
    merged: dict[tuple[str, str], Row] = {}
    for document in documents:
        for row in document["model_stats"]:
            known = merged.get((row["name"], row["version"]))
            merged[row["name"], row["version"]] = _added(known, row) if known else row
    return {"model_stats": [merged[key] for key in sorted(merged)]}


def _added(one: Row, other: Row) -> Row:
    """Numbers are summed at any depth, but for the time of the last inference; batches are matched by their size."""
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
    """READY is what all have; another state is told with the worker whose it is."""
    merged: dict[tuple[str, str], list[tuple[int, Row]]] = {}
    for number, rows in documents.items():
        for row in rows:
            merged.setdefault((row["name"], row.get("version", "")), []).append((number, row))
    agreed = [_agreed(found) for _, found in sorted(merged.items()) if _everywhere(found, len(documents))]
    named = {row["name"] for row in agreed if "version" in row}
    return [row for row in agreed if "version" in row or row["name"] not in named]


def _everywhere(found: Sequence[tuple[int, Row]], workers: int) -> bool:
    return len(found) == workers or any(row["state"] not in SERVING for _, row in found)


def _agreed(found: Sequence[tuple[int, Row]]) -> Row:
    """PARKED is what all are: one that is awake has its weights on the GPU."""
    states = {row["state"] for _, row in found}
    if states == {"READY", "PARKED"}:
        return next(row for _, row in found if row["state"] == "READY")
    number, row = next(((n, r) for n, r in found if r["state"] not in SERVING), found[0])
    if len(states) == 1:
        return row
    return {**row, "reason": f"worker {number}: {row['reason'] or row['state']}"}


def _status(documents: Mapping[int, Row], roster: Sequence[Row]) -> Row:
    """Ready while one is: only workers that are ready take connections."""
    told = next((document for document in documents.values() if document["ready"]), next(iter(documents.values())))
    shown = ("state", "ready", "reason", "in_flight")
    unknown = {"state": "initializing", "ready": False, "reason": "", "in_flight": 0}
    workers = [{**row, **{key: documents.get(row["worker"], unknown)[key] for key in shown}} for row in roster]
    return {
        **told,
        "models": _index({number: document["models"] for number, document in documents.items()}),
        "in_flight": sum(document["in_flight"] for document in documents.values()),
        "parked_bytes": sum(document.get("parked_bytes", 0) for document in documents.values()),
        "workers": workers,
    }
