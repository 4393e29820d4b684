"""The table of backends. Adding one is a file beside this and a line here (docs/backends.md).

Out-of-tree packages add theirs by the entry point group `pilotlight.backends` (name = module).
"""

from importlib import import_module
from types import ModuleType
from typing import NamedTuple

from pilotlight_predictor.plugins import plugins


class Row(NamedTuple):
    """`names` are what `backend:` and `platform:` of a config.pbtxt may say; `files` the default model files."""

    module: str
    names: tuple[str, ...]
    files: tuple[str, ...]


TABLE = (
    Row("pilotlight_predictor.backends.onnxruntime", ("onnxruntime", "onnxruntime_onnx"), ("model.onnx",)),
    Row(
        "pilotlight_predictor.backends.torch",
        ("torch", "pytorch", "pytorch_libtorch"),
        ("model.pt", "model.pt2", "model.safetensors"),
    ),
    Row("pilotlight_predictor.backends.python", ("python",), ("model.py",)),
    Row("pilotlight_predictor.backends.ensemble", ("ensemble",), ()),
    Row("pilotlight_predictor.backends.tensorflow", ("tensorflow_savedmodel",), ("model.savedmodel",)),
    Row("pilotlight_predictor.backends.tensorflow", ("tensorflow_graphdef", "tensorflow"), ("model.graphdef",)),
    Row("pilotlight_predictor.backends.tensorrt", ("tensorrt_plan", "tensorrt"), ("model.plan",)),
    Row("pilotlight_predictor.backends.caffe2", ("caffe2_netdef", "caffe2"), ("model.netdef",)),
)


def rows() -> tuple[Row, ...]:
    """The table and what installed packages add to it; theirs come last and cannot replace ours."""
    return TABLE + tuple(Row(ep.value, (ep.name,), ()) for ep in plugins("pilotlight.backends"))


def row(name: str) -> Row | None:
    for candidate in TABLE:
        if name in candidate.names:
            return candidate
    return next((extra for extra in rows()[len(TABLE) :] if name in extra.names), None)


def row_for_file(filename: str) -> Row | None:
    """The backend for a plain file by its default name or its ending."""
    for candidate in TABLE:
        if filename in candidate.files:
            return candidate
    ending = "." + filename.rpartition(".")[2]
    return next((r for r in TABLE if any(f.endswith(ending) for f in r.files)), None)


def module(found: Row) -> ModuleType:
    return import_module(found.module)
