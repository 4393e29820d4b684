"""What a model's outputs mean, in words that its kind has: classes, boxes, shares of a picture. Pure.

Applied where the outputs say what they are: by the names that `parameters.yaml` beside the model gives, or by shape.
Anything else is told as it came.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pilotlight.microservices.kinds import Schema

Arrays = Mapping[str, "np.ndarray[Any, Any]"]
BOXES, SCORES, CLASSES = ("boxes", "bboxes"), ("scores", "confidences"), ("classes", "labels", "class_ids")


def predictions(of: Schema, outputs: Arrays, values: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """One for each of the `count` pictures that the outputs are of."""
    reader = {"classification": _classified, "detection": _detected, "segmentation": _segmented}.get(of.kind)
    found = reader(of, outputs, values, count) if reader else None
    return found if found is not None else [_as_it_came(outputs, at, count) for at in range(count)]


def _as_it_came(outputs: Arrays, at: int, count: int) -> dict[str, Any]:
    batched = all(len(each.shape) > 0 and each.shape[0] == count for each in outputs.values())
    return {"outputs": {name: told(each[at] if batched else each) for name, each in outputs.items()}}


def told(array: "np.ndarray[Any, Any]") -> Any:
    return _texts(array.tolist()) if array.dtype == object else array.tolist()


def _texts(value: Any) -> Any:
    if isinstance(value, list):
        return [_texts(each) for each in value]
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _classified(of: Schema, outputs: Arrays, values: Mapping[str, Any], count: int) -> list[dict[str, Any]] | None:
    scores = _named(of, outputs, SCORES) if len(outputs) > 1 else next(iter(outputs.values()))
    if scores is None or scores.dtype.kind != "f" or scores.size == 0 or scores.size % count:
        return None
    rows = scores.reshape(count, -1).astype("f8")
    shares, soft = (rows, False) if _distribution(rows) else (_softmax(rows), True)
    return [_classes(row, of.labels, values) | ({"confidence_is": "softmax"} if soft else {}) for row in shares]


def _classes(row: "np.ndarray[Any, Any]", labels: Sequence[str], values: Mapping[str, Any]) -> dict[str, Any]:
    best = np.argsort(-row, kind="stable")[: values.get("top_k", 5)]
    least = values.get("confidence_threshold", 0.0)
    classes = [{"label": label(at, labels), "confidence": float(row[at])} for at in best if row[at] >= least]
    return {**(classes[0] if classes else {"label": None, "confidence": None}), "classes": classes}


def _detected(of: Schema, outputs: Arrays, values: Mapping[str, Any], count: int) -> list[dict[str, Any]] | None:
    boxes, scores, classes = (_named(of, outputs, names) for names in (BOXES, SCORES, CLASSES))
    if boxes is None or scores is None or boxes.size != scores.size * 4 or scores.size % count:
        return None
    boxes, scores = boxes.reshape(count, -1, 4), scores.reshape(count, -1)
    numbers = classes.reshape(count, -1) if classes is not None and classes.size == scores.size else None
    least = values.get("confidence_threshold", 0.5)

    def found(at: int, place: int) -> dict[str, Any]:
        named = {} if numbers is None else {"label": label(numbers[at, place], of.labels)}
        return {**named, "confidence": float(scores[at, place]), "box": [float(edge) for edge in boxes[at, place]]}

    return [
        {"detections": [found(at, int(place)) for place in np.flatnonzero(scores[at] >= least)]} for at in range(count)
    ]


def _segmented(of: Schema, outputs: Arrays, values: Mapping[str, Any], count: int) -> list[dict[str, Any]] | None:
    if len(outputs) != 1 or (array := next(iter(outputs.values()))).dtype == object or array.shape[:1] != (count,):
        return None
    if array.ndim == 4:  # scores of classes, of which each pixel has the best
        array = array.argmax(axis=1) if array.shape[1] > 1 else array[:, 0].round()
    return [_shares(each.astype("i8"), of.labels, values) for each in array] if array.ndim == 3 else None


def _shares(mask: "np.ndarray[Any, Any]", labels: Sequence[str], values: Mapping[str, Any]) -> dict[str, Any]:
    """The mask itself with the share of each class; below the threshold a class is not listed, in the mask it stays."""
    numbers, counts = np.unique(mask, return_counts=True)
    least = values.get("confidence_threshold", 0.0)
    shares = {label(at, labels): float(each / mask.size) for at, each in zip(numbers, counts, strict=True)}
    return {"shares": {name: share for name, share in shares.items() if share >= least}, "mask": mask.tolist()}


def label(number: Any, labels: Sequence[str]) -> str:
    if isinstance(number, bytes):
        return number.decode(errors="replace")
    at = int(number)
    return labels[at] if 0 <= at < len(labels) else str(at)


def _named(of: Schema, outputs: Arrays, names: Sequence[str]) -> "np.ndarray[Any, Any] | None":
    declared = of.outputs.get(names[0])
    return next((outputs[name] for name in ((declared,) if declared else names) if name in outputs), None)


def _distribution(rows: "np.ndarray[Any, Any]") -> bool:
    return bool((rows >= 0).all() and np.allclose(rows.sum(axis=1), 1.0, atol=1e-2))


def _softmax(rows: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    raised = np.exp(rows - rows.max(axis=1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True))
