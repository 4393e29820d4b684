"""Scores results against a labelled set: accuracy, and precision and recall for each class. Pure.

A label is one word for a picture or text; several, for what may be detected together, stand with `|` between them.
"""

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from pilotlight.errors import UsageError
from pilotlight.microservices.batch.model import Outcome

Labels = Mapping[str, frozenset[str]]


def read_labels(name: str, content: bytes) -> Labels:
    """A CSV with the columns file and label, an object of JSON, or a line of JSON with both for each file."""
    try:
        text = content.decode()
        rows = list(_rows(name, text))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"labels = {name}: cannot be read ({error}); docs/batch.md shows the three forms") from None
    if not rows:
        raise UsageError(f"labels = {name}: there is no label in it")
    return {file: _words(label) for file, label in rows}


def _rows(name: str, text: str) -> Iterable[tuple[str, str]]:
    if name.lower().endswith(".csv"):
        return [(row["file"].strip(), row["label"]) for row in csv.DictReader(io.StringIO(text))]
    if name.lower().endswith(".jsonl"):
        lines = (json.loads(line) for line in text.splitlines() if line.strip())
        return [(line["file"], str(line["label"])) for line in lines]
    return [(file, label if isinstance(label, str) else "|".join(label)) for file, label in json.loads(text).items()]


def _words(label: str) -> frozenset[str]:
    return frozenset(word.strip() for word in label.split("|") if word.strip())


def said(results: Mapping[str, Any]) -> frozenset[str]:
    """The labels that a model gave to one file."""
    predictions = results.get("predictions")
    if predictions:
        first = predictions[0]
        if "detections" in first:
            return frozenset(str(each["label"]) for each in first["detections"] if "label" in each)
        if "label" in first:
            return frozenset() if first["label"] is None else frozenset({str(first["label"])})
        raise UsageError("the results have no labels: only classes, detections and texts can be scored")
    if "response" in results:
        return _words(str(results["response"]))
    raise UsageError("the results have no labels: only classes, detections and texts can be scored")


def metrics(outcomes: Iterable[Outcome], labels: Labels) -> dict[str, Any]:
    """`accuracy` is the share of labelled files whose labels are exactly right; a file that failed is wrong."""
    expected, given = Counter[str](), Counter[str]()
    right_of = Counter[str]()
    pairs = Counter[tuple[str, str]]()
    scored = right = unlabelled = 0
    seen = set[str]()
    for outcome in outcomes:
        if (meant := labels.get(outcome.file)) is None:
            unlabelled += 1
            continue
        found = said(outcome.results) if outcome.results is not None else frozenset[str]()
        seen.add(outcome.file)
        scored, right = scored + 1, right + (found == meant)
        expected.update(meant)
        given.update(found)
        right_of.update(meant & found)
        pairs["|".join(sorted(meant)), "|".join(sorted(found))] += 1
    classes = {name: _class(right_of[name], given[name], expected[name]) for name in sorted(expected | given)}
    return {
        "files": scored,
        "unlabelled": unlabelled,
        "missing": len(labels.keys() - seen),
        "accuracy": right / scored if scored else None,
        **{f"macro_{name}": _mean(each[name] for each in classes.values()) for name in ("precision", "recall", "f1")},
        "classes": classes,
        "confusion": [
            {"label": meant, "predicted": found, "count": count} for (meant, found), count in sorted(pairs.items())
        ],
    }


def _class(right: int, given: int, expected: int) -> dict[str, float | int | None]:
    """Without a prediction there is no precision, without a label no recall: None, not 0."""
    precision = right / given if given else None
    recall = right / expected if expected else None
    both = given + expected
    return {"precision": precision, "recall": recall, "f1": 2 * right / both if both else None, "count": expected}


def _mean(values: Iterable[Any]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
