"""Interpretation of a model's outputs by its kind: classes, detections, segmentation shares. Pure.

Outputs are identified by the names in the model's `parameters.yaml`, or by shape; others are returned unchanged.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pilotlight.microservices.kinds import Schema

Arrays = Mapping[str, "np.ndarray[Any, Any]"]
BOXES, SCORES, CLASSES = ("boxes", "bboxes"), ("scores", "confidences"), ("classes", "labels", "class_ids")


def predictions(schema: Schema, outputs: Arrays, values: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """Return one prediction for each of the `count` images of the outputs."""
    reader = {"classification": _classified, "detection": _detected, "segmentation": _segmented}.get(schema.kind)
    result = reader(schema, outputs, values, count) if reader else None
    return result if result is not None else [_raw_outputs(outputs, at, count) for at in range(count)]


def _raw_outputs(outputs: Arrays, index: int, count: int) -> dict[str, Any]:
    batched = all(len(each.shape) > 0 and each.shape[0] == count for each in outputs.values())
    return {"outputs": {name: to_json(each[index] if batched else each) for name, each in outputs.items()}}


def to_json(array: "np.ndarray[Any, Any]") -> Any:
    return _texts(array.tolist()) if array.dtype == object else array.tolist()


def _texts(value: Any) -> Any:
    if isinstance(value, list):
        return [_texts(each) for each in value]
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _classified(schema: Schema, outputs: Arrays, values: Mapping[str, Any], count: int) -> list[dict[str, Any]] | None:
    scores = _named(schema, outputs, SCORES) if len(outputs) > 1 else next(iter(outputs.values()))
    if scores is None or scores.dtype.kind != "f" or scores.size == 0 or scores.size % count:
        return None
    rows = scores.reshape(count, -1).astype("f8")
    shares, soft = (rows, False) if _distribution(rows) else (_softmax(rows), True)
    return [_classes(row, schema.labels, values) | ({"confidence_is": "softmax"} if soft else {}) for row in shares]


def _classes(row: "np.ndarray[Any, Any]", labels: Sequence[str], values: Mapping[str, Any]) -> dict[str, Any]:
    best = np.argsort(-row, kind="stable")[: values.get("top_k", 5)]
    least = values.get("confidence_threshold", 0.0)
    classes = [{"label": label(at, labels), "confidence": float(row[at])} for at in best if row[at] >= least]
    return {**(classes[0] if classes else {"label": None, "confidence": None}), "classes": classes}


def _detected(schema: Schema, outputs: Arrays, values: Mapping[str, Any], count: int) -> list[dict[str, Any]] | None:
    boxes, scores, classes = (_named(schema, outputs, names) for names in (BOXES, SCORES, CLASSES))
    if boxes is None or scores is None or boxes.size != scores.size * 4 or scores.size % count:
        return None
    boxes, scores = boxes.reshape(count, -1, 4), scores.reshape(count, -1)
    numbers = classes.reshape(count, -1) if classes is not None and classes.size == scores.size else None
    least = values.get("confidence_threshold", 0.5)

    def detection(at: int, box: int) -> dict[str, Any]:
        named = {} if numbers is None else {"label": label(numbers[at, box], schema.labels)}
        return {**named, "confidence": float(scores[at, box]), "box": [float(edge) for edge in boxes[at, box]]}

    return [
        {"detections": [detection(at, int(box)) for box in np.flatnonzero(scores[at] >= least)]} for at in range(count)
    ]


def _segmented(schema: Schema, outputs: Arrays, values: Mapping[str, Any], count: int) -> list[dict[str, Any]] | None:
    if len(outputs) != 1 or (array := next(iter(outputs.values()))).dtype == object or array.shape[:1] != (count,):
        return None
    if array.ndim == 4:  # class scores: each pixel gets the best class
        array = array.argmax(axis=1) if array.shape[1] > 1 else array[:, 0].round()
    return [_shares(each.astype("i8"), schema.labels, values) for each in array] if array.ndim == 3 else None


def _shares(mask: "np.ndarray[Any, Any]", labels: Sequence[str], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mask and the share of each class. Classes below the threshold are in the mask only."""
    numbers, counts = np.unique(mask, return_counts=True)
    least = values.get("confidence_threshold", 0.0)
    shares = {label(number, labels): float(each / mask.size) for number, each in zip(numbers, counts, strict=True)}
    return {"shares": {name: share for name, share in shares.items() if share >= least}, "mask": mask.tolist()}


def label(number: Any, labels: Sequence[str]) -> str:
    if isinstance(number, bytes):
        return number.decode(errors="replace")
    at = int(number)
    return labels[at] if 0 <= at < len(labels) else str(at)


def _named(schema: Schema, outputs: Arrays, names: Sequence[str]) -> "np.ndarray[Any, Any] | None":
    declared = schema.outputs.get(names[0])
    return next((outputs[name] for name in ((declared,) if declared else names) if name in outputs), None)


def _distribution(rows: "np.ndarray[Any, Any]") -> bool:
    return bool((rows >= 0).all() and np.allclose(rows.sum(axis=1), 1.0, atol=1e-2))


def _softmax(rows: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    exponentials = np.exp(rows - rows.max(axis=1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=1, keepdims=True))
