"""Validation of declared inputs and outputs, part of `validate`. Pure."""

from collections.abc import Sequence
from typing import Final

from pilotlight_predictor.repository.json_config import ConfigDocument, Path, Values
from pilotlight_predictor.repository.model_config import stays_inside

VARIABLE: Final = -1
_TENSORRT: Final = frozenset({"tensorrt_plan", "tensorrt"})


def check_tensors(document: ConfigDocument) -> None:
    for direction in ("input", "output"):
        seen: set[str] = set()
        for index, tensor in enumerate(document.values.get(direction, [])):
            path: Path = (direction, index)
            name = tensor.get("name", "")
            if not name:
                raise document.failure(path, 'has no name; add name: "…"')
            if name in seen:
                raise document.failure((*path, "name"), f"= {name!r} is used by another {direction}; names must differ")
            seen.add(name)
            _check_tensor(document, tensor, path)


def _check_tensor(document: ConfigDocument, tensor: Values, path: Path) -> None:
    if tensor.get("data_type") == "TYPE_INVALID":
        raise document.failure((*path, "data_type"), "= TYPE_INVALID, must be a type such as TYPE_FP32")
    check_dims(document, tensor.get("dims", []), (*path, "dims"))
    if "reshape" in tensor:
        _check_reshape(document, tensor, path)
    if tensor.get("format", "FORMAT_NONE") != "FORMAT_NONE" and len(tensor.get("dims", [0, 0, 0])) != 3:
        sentence = f"= {tensor['format']} needs three dims, without the batch dimension; dims has {len(tensor['dims'])}"
        raise document.failure((*path, "format"), sentence)
    if tensor.get("label_filename") and not stays_inside(tensor["label_filename"]):
        sentence = f"= {tensor['label_filename']!r}, must be a path inside the model's directory"
        raise document.failure((*path, "label_filename"), sentence)
    names = {document.values.get("platform", ""), document.values.get("backend", "")}
    for field in ("is_shape_tensor", "is_non_linear_format_io"):
        if tensor.get(field) and not names & _TENSORRT:
            raise document.failure((*path, field), "= true is supported by the platform tensorrt_plan only; remove it")


def check_dims(document: ConfigDocument, dims: Sequence[int], path: Path, variable: bool = True) -> None:
    for index, size in enumerate(dims):
        if size < 1 and not (variable and size == VARIABLE):
            also = ", or -1 for a size that varies" if variable else ""
            raise document.failure((*path, index), f"= {size}, must be 1 or more{also}")


def _check_reshape(document: ConfigDocument, tensor: Values, path: Path) -> None:
    dims, shape = tensor.get("dims", []), tensor["reshape"].get("shape", [])
    place = (*path, "reshape")
    check_dims(document, shape, (*place, "shape"))
    if not shape and document.values.get("max_batch_size") == 0:
        raise document.failure(place, "is empty, which only a model with max_batch_size > 0 may have")
    if dims and _runs(dims) != _runs(shape):
        sentence = (
            f"{shape} does not hold as many elements as dims {dims}, with -1 standing for the same sizes in order"
        )
        raise document.failure(place, sentence)


def _runs(shape: Sequence[int]) -> list[int]:
    """Return the element counts around variable sizes: [2, 4, -1, 6] and [8, -1, 1, 6] both give [8, 6]."""
    counts = [1]
    for size in shape:
        if size == VARIABLE:
            counts.append(1)
        else:
            counts[-1] *= size
    return counts


def check_batch_tensors(document: ConfigDocument) -> None:
    """Check `batch_input` and `batch_output`: each is generated from one input."""
    inputs = {tensor.get("name") for tensor in document.values.get("input", [])}
    for field in ("batch_input", "batch_output"):
        for index, tensor in enumerate(document.values.get(field, [])):
            path: Path = (field, index)
            sources = tensor.get("source_input", [])
            if len(sources) != 1:
                raise document.failure((*path, "source_input"), f"has {len(sources)} names, must have one")
            if inputs and sources[0] not in inputs:
                raise document.failure((*path, "source_input", 0), f"= {sources[0]!r} is not an input of this model")
            if field == "batch_input" and tensor.get("data_type") not in {"TYPE_INT32", "TYPE_FP32"}:
                raise document.failure((*path, "data_type"), "must be TYPE_INT32 or TYPE_FP32")
