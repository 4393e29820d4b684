"""Validation of `optimization.cuda`, part of `validate`. Pure."""

from typing import Final

from pilotlight_predictor.repository.document import ConfigDocument, Path, Values
from pilotlight_predictor.repository.tensor_validation import check_dims

_PATH: Final[Path] = ("optimization", "cuda")


def check_graphs(document: ConfigDocument) -> None:
    cuda = document.values.get("optimization", {}).get("cuda", {})
    specs = cuda.get("graph_spec", [])
    if specs and not cuda.get("graphs"):
        raise document.failure((*_PATH, "graph_spec"), "has no effect without graphs: true; add that, or remove it")
    for index, spec in enumerate(specs):
        _check_spec(document, spec, (*_PATH, "graph_spec", index))


def _check_spec(document: ConfigDocument, spec: Values, path: Path) -> None:
    largest, rows = document.values.get("max_batch_size", 0), spec.get("batch_size", 0)
    if not (1 <= rows <= largest or rows == largest == 0):
        expected = f"from 1 to max_batch_size, which is {largest}" if largest else "0, as max_batch_size is"
        raise document.failure((*path, "batch_size"), f"= {rows}, must be {expected}")
    bound = spec.get("graph_lower_bound", {})
    least = bound.get("batch_size", 1 if rows else 0)
    if not min(rows, 1) <= least <= rows:
        sentence = f"= {least}, must be from {min(rows, 1)} to the graph's batch_size, which is {rows}"
        raise document.failure((*path, "graph_lower_bound", "batch_size"), sentence)
    if bound.get("input"):
        sentence = "is not served: a graph runs for the dims that it was captured with; remove it"
        raise document.failure((*path, "graph_lower_bound", "input"), sentence)
    _check_inputs(document, spec, path)


def _check_inputs(document: ConfigDocument, spec: Values, path: Path) -> None:
    known = {tensor["name"] for tensor in document.values.get("input", [])}
    for name, shape in spec.get("input", {}).items():
        place = (*path, "input", name)
        if known and name not in known:
            raise document.failure(place, f"is for {name!r}, which is no input; known are {', '.join(sorted(known))}")
        check_dims(document, shape.get("dim", []), (*place, "dim"), variable=False)
