"""Scores of results against labels: accuracy, and precision and recall for each class. Pure.

A file has one label, or several separated by `|`, such as for detections.
"""

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from pilotlight.errors import UsageError
from pilotlight.microservices.batch.job_folder import Outcome

Labels = Mapping[str, frozenset[str]]


def read_labels(name: str, content: bytes) -> Labels:
    """Parse labels: CSV or JSON lines with `file` and `label`, or a JSON object of labels by file."""
    try:
        text = content.decode()
        if name.lower().endswith(".csv"):
            rows = [(row["file"].strip(), row["label"]) for row in csv.DictReader(io.StringIO(text))]
        elif name.lower().endswith(".jsonl"):
            lines = (json.loads(line) for line in text.splitlines() if line.strip())
            rows = [(line["file"], str(line["label"])) for line in lines]
        else:
            pairs = json.loads(text).items()
            rows = [(file, label if isinstance(label, str) else "|".join(label)) for file, label in pairs]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        hint = "docs/how-to/migrate-tao.md shows the three forms"
        raise UsageError(f"labels = {name}: cannot be read ({error})", hint) from None
    if not rows:
        raise UsageError(f"labels = {name}: there is no label in it")
    return {file: _split_labels(label) for file, label in rows}


def _split_labels(label: str) -> frozenset[str]:
    return frozenset(word.strip() for word in label.split("|") if word.strip())


def predicted_labels(results: Mapping[str, Any]) -> frozenset[str]:
    if predictions := results.get("predictions"):
        first = predictions[0]
        if "detections" in first:
            return frozenset(str(each["label"]) for each in first["detections"] if "label" in each)
        if "label" in first:
            return frozenset() if first["label"] is None else frozenset({str(first["label"])})
    elif "response" in results:
        return _split_labels(str(results["response"]))
    raise UsageError("the results have no labels: only classes, detections and texts can be scored")


def metrics(outcomes: Iterable[Outcome], labels: Labels) -> dict[str, Any]:
    """Return the scores. `accuracy`: share of labelled files with exactly the right labels; a failed file is wrong."""
    expected, predicted, right_of = Counter[str](), Counter[str](), Counter[str]()
    pairs = Counter[tuple[str, str]]()
    scored = right = unlabelled = 0
    seen = set[str]()
    for outcome in outcomes:
        if (expected_labels := labels.get(outcome.file)) is None:
            unlabelled += 1
            continue
        answers = predicted_labels(outcome.results) if outcome.results is not None else frozenset[str]()
        seen.add(outcome.file)
        scored, right = scored + 1, right + (answers == expected_labels)
        expected.update(expected_labels)
        predicted.update(answers)
        right_of.update(expected_labels & answers)
        pairs["|".join(sorted(expected_labels)), "|".join(sorted(answers))] += 1
    classes = {name: _class(right_of[name], predicted[name], expected[name]) for name in sorted(expected | predicted)}
    return {
        "files": scored,
        "unlabelled": unlabelled,
        "missing": len(labels.keys() - seen),
        "accuracy": right / scored if scored else None,
        **{f"macro_{name}": _mean(each[name] for each in classes.values()) for name in ("precision", "recall", "f1")},
        "classes": classes,
        "confusion": [
            {"label": label, "predicted": answer, "count": count} for (label, answer), count in sorted(pairs.items())
        ],
    }


def _class(right: int, predicted: int, expected: int) -> dict[str, float | int | None]:
    """Return the scores of one class. Precision without predictions and recall without labels are None, not 0."""
    precision = right / predicted if predicted else None
    recall = right / expected if expected else None
    both = predicted + expected
    return {"precision": precision, "recall": recall, "f1": 2 * right / both if both else None, "count": expected}


def _mean(values: Iterable[Any]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
