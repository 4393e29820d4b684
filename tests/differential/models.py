"""The model repository that both servers are given: models of Triton's Python backend, which Pilotlight runs unchanged.

Together they have what a dialect can show: batches and none, every datatype, labels, optional inputs, several versions,
a model that fails, one that nobody loaded at start, and one that cannot be loaded.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

DATATYPES: Final = (
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BYTES",
)  # fmt: skip
AT_START: Final = ("add", "types", "matrix", "versions", "fails")
UNLOADED: Final = ("spare", "reserve", "broken")

# Triton's stub embeds an interpreter that knows no virtual environment; where numpy lies is told it by a variable.
HEAD = """\
import os
import sys

sys.path[:0] = filter(None, os.environ.get("JUDGE_SITE_PACKAGES", "").split(os.pathsep))

import triton_python_backend_utils as pb_utils


def inputs_of(request):
    return {each.name(): each.as_numpy() for each in request.inputs()}


"""
MODEL = (
    HEAD
    + """\
class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(inputs_of(request)) for request in requests]

    def answer(self, given):
"""
)
ADD = (
    MODEL
    + """\
        a, b = given["a"], given["b"]
        return pb_utils.InferenceResponse([pb_utils.Tensor("sum", a + b), pb_utils.Tensor("difference", a - b)])
"""
)
ECHO = (
    MODEL
    + """\
        return pb_utils.InferenceResponse([pb_utils.Tensor(f"out_{name}", value) for name, value in given.items()])
"""
)
VERSION = (
    MODEL
    + """\
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", given["x"] * FACTOR)])
"""
)
FAILS = (
    MODEL
    + """\
        return pb_utils.InferenceResponse([], error=pb_utils.TritonError("the model says no"))
"""
)


def write_models(repository: Path) -> Path:
    _model(repository, "add", ADD, 8, _tensors("a b", "FP32", "4"), _summed(), dynamic_batching="dynamic_batching { }")
    (repository / "add" / "labels.txt").write_text("zero\none\ntwo\n")
    for name in ("spare", "reserve"):
        _model(repository, name, ADD, 8, _tensors("a b", "FP32", "4"), _tensors("sum difference", "FP32", "4"))
    _model(repository, "types", ECHO, 0, *_every_datatype())
    _model(repository, "matrix", ECHO, 0, _tensors("x", "FP32", "-1, 3"), _tensors("out_x", "FP32", "-1, 3"))
    x, y = _tensors("x", "INT32", "2"), _tensors("y", "INT32", "2")
    _model(repository, "fails", FAILS, 0, x, y)
    _model(repository, "broken", "this is no Python", 0, x, y)
    _model(repository, "versions", VERSION.replace("FACTOR", "1"), 0, x, y, version_policy="version_policy { all { } }")
    second = repository / "versions" / "2"
    second.mkdir()
    (second / "model.py").write_text(VERSION.replace("FACTOR", "-1"))
    return repository


def _every_datatype() -> tuple[list[str], list[str]]:
    inputs = [_tensor(each.lower(), each, "-1", " optional: true") for each in DATATYPES]
    return inputs, [_tensor(f"out_{each.lower()}", each, "-1") for each in DATATYPES]


def _summed() -> list[str]:
    return [_tensor("sum", "FP32", "4", ' label_filename: "labels.txt"'), _tensor("difference", "FP32", "4")]


def _tensors(names: str, datatype: str, dims: str) -> list[str]:
    return [_tensor(name, datatype, dims) for name in names.split()]


def _tensor(name: str, datatype: str, dims: str, more: str = "") -> str:
    kind = "STRING" if datatype == "BYTES" else datatype
    return f'{{ name: "{name}" data_type: TYPE_{kind} dims: [ {dims} ]{more} }}'


def _model(
    repository: Path,
    name: str,
    source: str,
    max_batch_size: int,
    inputs: Sequence[str],
    outputs: Sequence[str],
    **more: str,
) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "1" / "model.py").write_text(source)
    lines = [f'name: "{name}"', 'backend: "python"', f"max_batch_size: {max_batch_size}"]
    lines += [f"input [ {', '.join(inputs)} ]", f"output [ {', '.join(outputs)} ]", *more.values()]
    lines += ["instance_group [ { count: 1 kind: KIND_CPU } ]"]
    (repository / name / "config.pbtxt").write_text("\n".join(lines) + "\n")
