"""Inference with images on a tensor model by V2, and interpretation of its outputs by the model's kind.

Tensors are binary, as the model's metadata declares them. Outputs are identified by the names in `parameters.yaml`,
or by shape: classes, detections, segmentation shares; others are returned unchanged.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pilotlight.client.tensors import array_of
from pilotlight.microservices.inference.client import InferenceFailed, call
from pilotlight.microservices.media import Limits, Media
from pilotlight.microservices.media.images import pixels
from pilotlight.microservices.media.limits import refused_as
from pilotlight.microservices.media.tensors import tensor
from pilotlight.microservices.media.videos import frames
from pilotlight.microservices.registry.model_kinds import Schema
from pilotlight.v2_tensors import InputSpec, Tensor, decode_response, encode_request, pack_bytes
from pilotlight.wire.http_client import decode_json

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]
BOXES, SCORES, CLASSES = ("boxes", "bboxes"), ("scores", "confidences"), ("classes", "labels", "class_ids")


def predictions(schema: Schema, outputs: Arrays, values: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """Return one prediction for each of the `count` images of the outputs."""
    reader = {"classification": _classified, "detection": _detected, "segmentation": _segmented}.get(schema.kind)
    result = reader(schema, outputs, values, count) if reader else None
    if result is not None:
        return result
    batched = all(len(each.shape) > 0 and each.shape[0] == count for each in outputs.values())
    return [
        {"outputs": {name: to_json(each[at] if batched else each) for name, each in outputs.items()}}
        for at in range(count)
    ]


def to_json(array: Array) -> Any:
    return _texts(array.tolist()) if array.dtype == object else array.tolist()


def _texts(value: Any) -> Any:
    if isinstance(value, list):
        return [_texts(each) for each in value]
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _classified(schema: Schema, outputs: Arrays, values: Mapping[str, Any], count: int) -> list[dict[str, Any]] | None:
    scores = _named(schema, outputs, SCORES) if len(outputs) > 1 else next(iter(outputs.values()))
    if scores is None or scores.dtype.kind != "f" or scores.size == 0 or scores.size % count:
        return None
    rows, note = scores.reshape(count, -1).astype("f8"), {}
    if (rows < 0).any() or not np.allclose(rows.sum(axis=1), 1.0, atol=1e-2):  # logits, not a distribution
        exponentials = np.exp(rows - rows.max(axis=1, keepdims=True))
        rows, note = exponentials / exponentials.sum(axis=1, keepdims=True), {"confidence_is": "softmax"}
    return [_classes(row, schema.labels, values) | note for row in rows]


def _classes(row: Array, labels: Sequence[str], values: Mapping[str, Any]) -> dict[str, Any]:
    best = np.argsort(-row, kind="stable")[: values.get("top_k", 5)]
    threshold = values.get("confidence_threshold", 0.0)
    classes = [{"label": label(at, labels), "confidence": float(row[at])} for at in best if row[at] >= threshold]
    return {**(classes[0] if classes else {"label": None, "confidence": None}), "classes": classes}


def _detected(schema: Schema, outputs: Arrays, values: Mapping[str, Any], count: int) -> list[dict[str, Any]] | None:
    boxes, scores, classes = (_named(schema, outputs, names) for names in (BOXES, SCORES, CLASSES))
    if boxes is None or scores is None or boxes.size != scores.size * 4 or scores.size % count:
        return None
    boxes, scores = boxes.reshape(count, -1, 4), scores.reshape(count, -1)
    numbers = classes.reshape(count, -1) if classes is not None and classes.size == scores.size else None
    threshold = values.get("confidence_threshold", 0.5)

    def detection(at: int, box: int) -> dict[str, Any]:
        named = {} if numbers is None else {"label": label(numbers[at, box], schema.labels)}
        return {**named, "confidence": float(scores[at, box]), "box": [float(edge) for edge in boxes[at, box]]}

    return [
        {"detections": [detection(at, int(box)) for box in np.flatnonzero(scores[at] >= threshold)]}
        for at in range(count)
    ]


def _segmented(schema: Schema, outputs: Arrays, values: Mapping[str, Any], count: int) -> list[dict[str, Any]] | None:
    if len(outputs) != 1 or (array := next(iter(outputs.values()))).dtype == object or array.shape[:1] != (count,):
        return None
    if array.ndim == 4:  # class scores: each pixel gets the best class
        array = array.argmax(axis=1) if array.shape[1] > 1 else array[:, 0].round()
    return [_shares(each.astype("i8"), schema.labels, values) for each in array] if array.ndim == 3 else None


def _shares(mask: Array, labels: Sequence[str], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mask and the share of each class. Classes below the threshold are in the mask only."""
    numbers, counts = np.unique(mask, return_counts=True)
    threshold = values.get("confidence_threshold", 0.0)
    shares = {label(number, labels): float(each / mask.size) for number, each in zip(numbers, counts, strict=True)}
    return {"shares": {name: share for name, share in shares.items() if share >= threshold}, "mask": mask.tolist()}


def label(number: Any, labels: Sequence[str]) -> str:
    if isinstance(number, bytes):
        return number.decode(errors="replace")
    at = int(number)
    return labels[at] if 0 <= at < len(labels) else str(at)


def _named(schema: Schema, outputs: Arrays, names: Sequence[str]) -> Array | None:
    declared = schema.outputs.get(names[0])
    return next((outputs[name] for name in ((declared,) if declared else names) if name in outputs), None)


class ImageModel:
    """Client of one served model that takes images."""

    def __init__(self, url: str, name: str, schema: Schema, limits: Limits, timeout: float) -> None:
        self._url, self._path, self._schema = url, f"/v2/models/{name}", schema
        self._limits, self._timeout = limits, timeout
        metadata = decode_json(call(url, "GET", self._path, b"", timeout).body)
        needed = [each for each in metadata["inputs"] if not each.get("optional")]
        if len(needed) != 1:
            names = ", ".join(each["name"] for each in needed)
            message = f"the model needs {len(needed)} inputs ({names}), but only one input can be an image"
            raise InferenceFailed(message, 400)
        shape = tuple(int(each) for each in needed[0]["shape"])
        self._input = InputSpec(needed[0]["name"], needed[0]["datatype"], shape)

    def predict(self, media: Sequence[Media], values: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return one prediction for each medium; a video's has one for each frame."""
        if any(each.kind == "video" for each in media):
            return [
                self._video(each, values) if each.kind == "video" else self.predict([each], values)[0] for each in media
            ]
        if self._input.datatype == "BYTES":  # encoded images, in the model's number of dimensions
            array = np.array([each.data for each in media], dtype=object)
            array = array.reshape(-1, *[1] * (len(self._input.shape) - 1))
        else:
            images = []
            for index, each in enumerate(media):
                with refused_as(index):
                    images.append(pixels(each, self._limits))
            array = tensor(images, self._input, self._schema.prepare)
        return predictions(self._schema, self._infer(array), values, len(media))

    def _video(self, media: Media, values: Mapping[str, Any]) -> dict[str, Any]:
        with refused_as(-1):
            images = frames(media, self._limits)
        arrays = (tensor([image], self._input, self._schema.prepare) for image in images)
        return {"frames": [predictions(self._schema, self._infer(array), values, 1)[0] for array in arrays]}

    def _infer(self, array: Array) -> dict[str, Array]:
        raw = pack_bytes(array.flat) if array.dtype == object else array.tobytes()
        sent = Tensor(self._input.name, self._input.datatype, array.shape, raw)
        body, headers = encode_request([sent], binary_data_output=True)
        response = call(self._url, "POST", self._path + "/infer", body, self._timeout, headers)
        return {each.name: array_of(each) for each in decode_response(response.headers, response.body)[1]}
