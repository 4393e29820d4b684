"""Table of backends. Adding one takes a module in backends/ and a line in the table (docs/backends.md).

Out-of-tree packages add theirs through the entry point group `pilotlight.backends` (name = module).
"""

import json
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from pilotlight_predictor.core.plugins import plugins


class BackendEntry(NamedTuple):
    """One backend: `names` for `backend:` and `platform:` of a config.pbtxt, and the default model `files`.

    `numpy`: models may compute with numpy and need its full thread pool. `graphs`: supports CUDA graphs. `data`: its
    model files are data, which cannot run code; TorchScript, SavedModels and TensorRT plans can.
    """

    module: str
    names: tuple[str, ...]
    files: tuple[str, ...]
    numpy: bool = False
    graphs: bool = False
    data: bool = False


TABLE = (
    BackendEntry(
        "pilotlight_predictor.backends.onnxruntime", ("onnxruntime", "onnxruntime_onnx"), ("model.onnx",), data=True
    ),
    BackendEntry(
        "pilotlight_predictor.backends.torch.backend",
        ("torch", "pytorch", "pytorch_libtorch"),
        ("model.pt", "model.pt2", "model.safetensors"),
        numpy=True,  # in a model.py next to the weights
        graphs=True,
    ),
    BackendEntry("pilotlight_predictor.backends.torch.aot.backend", ("aot",), ()),
    BackendEntry("pilotlight_predictor.backends.python.backend", ("python",), ("model.py",), numpy=True),
    BackendEntry("pilotlight_predictor.scheduling.ensemble", ("ensemble",), ()),
    BackendEntry("pilotlight_predictor.backends.text.backend", ("text", "transformers"), (), graphs=True, data=True),
    BackendEntry("pilotlight_predictor.backends.tensorflow", ("tensorflow_savedmodel",), ("model.savedmodel",)),
    BackendEntry(
        "pilotlight_predictor.backends.tensorflow", ("tensorflow_graphdef", "tensorflow"), ("model.graphdef",)
    ),
    BackendEntry("pilotlight_predictor.backends.tensorrt", ("tensorrt_plan", "tensorrt"), ("model.plan",)),
    BackendEntry("pilotlight_predictor.backends.caffe2", ("caffe2_netdef", "caffe2"), ("model.netdef",)),
)


def all_backends() -> tuple[BackendEntry, ...]:
    """The table and the backends of installed packages, which come last and cannot replace built-in ones."""
    return TABLE + tuple(BackendEntry(ep.value, (ep.name,), (), numpy=True) for ep in plugins("pilotlight.backends"))


def find_backend(name: str) -> BackendEntry | None:
    for candidate in TABLE:
        if name in candidate.names:
            return candidate
    return next((extra for extra in all_backends()[len(TABLE) :] if name in extra.names), None)


def backend_for_file(filename: str) -> BackendEntry | None:
    """The backend for a plain file by its default name or its suffix."""
    for candidate in TABLE:
        if filename in candidate.files:
            return candidate
    suffix = "." + filename.rpartition(".")[2]
    return next((r for r in TABLE if any(f.endswith(suffix) for f in r.files)), None)


def backend_for_folder(folder: Path) -> BackendEntry | None:
    """The text backend for a causal language model in Hugging Face's layout; None for any other directory."""
    if not (folder / "config.json").is_file() or (folder / "model.py").exists() or (folder / "model.onnx").exists():
        return None
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")):
        return None
    try:
        architectures = json.loads((folder / "config.json").read_bytes()).get("architectures") or ()
    except (OSError, ValueError, AttributeError):
        return None
    causal = any(str(name).endswith(("ForCausalLM", "LMHeadModel")) for name in architectures)
    return find_backend("text") if causal else None


def module(entry: BackendEntry) -> ModuleType:
    return import_module(entry.module)
