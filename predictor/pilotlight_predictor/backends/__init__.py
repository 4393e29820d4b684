"""The table of backends. Adding one is a file beside this and a line here (docs/backends.md).

Out-of-tree packages add theirs by the entry point group `pilotlight.backends` (name = module).
"""

import json
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from pilotlight_predictor.plugins import plugins


class Row(NamedTuple):
    """`names` are what `backend:` and `platform:` of a config.pbtxt may say; `files` the default model files.

    `numpy`: models may compute by it, and so shall find all its threads. `graphs`: captures CUDA graphs when asked to.
    """

    module: str
    names: tuple[str, ...]
    files: tuple[str, ...]
    numpy: bool = False
    graphs: bool = False


TABLE = (
    Row("pilotlight_predictor.backends.onnxruntime", ("onnxruntime", "onnxruntime_onnx"), ("model.onnx",)),
    Row(
        "pilotlight_predictor.backends.torch",
        ("torch", "pytorch", "pytorch_libtorch"),
        ("model.pt", "model.pt2", "model.safetensors"),
        numpy=True,  # a model.py beside the weights
        graphs=True,
    ),
    Row("pilotlight_predictor.backends.aot", ("aot",), ()),
    Row("pilotlight_predictor.backends.python", ("python",), ("model.py",), numpy=True),
    Row("pilotlight_predictor.backends.ensemble", ("ensemble",), ()),
    Row("pilotlight_predictor.backends.text", ("text", "transformers"), (), graphs=True),
    Row("pilotlight_predictor.backends.tensorflow", ("tensorflow_savedmodel",), ("model.savedmodel",)),
    Row("pilotlight_predictor.backends.tensorflow", ("tensorflow_graphdef", "tensorflow"), ("model.graphdef",)),
    Row("pilotlight_predictor.backends.tensorrt", ("tensorrt_plan", "tensorrt"), ("model.plan",)),
    Row("pilotlight_predictor.backends.caffe2", ("caffe2_netdef", "caffe2"), ("model.netdef",)),
)


def rows() -> tuple[Row, ...]:
    """The table and what installed packages add to it; theirs come last and cannot replace ours."""
    return TABLE + tuple(Row(ep.value, (ep.name,), (), numpy=True) for ep in plugins("pilotlight.backends"))


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


def row_for_folder(folder: Path) -> Row | None:
    """The text backend for a causal language model in Hugging Face's layout; None for any other directory."""
    if not (folder / "config.json").is_file() or (folder / "model.py").exists() or (folder / "model.onnx").exists():
        return None
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")):
        return None
    try:
        told = json.loads((folder / "config.json").read_bytes()).get("architectures") or ()
    except (OSError, ValueError, AttributeError):
        return None
    return row("text") if any(str(name).endswith(("ForCausalLM", "LMHeadModel")) for name in told) else None


def module(found: Row) -> ModuleType:
    return import_module(found.module)
