"""Table of backends. Adding one takes a module in backends/ and a line in the table (docs/reference/backends.md).

Out-of-tree packages add theirs through the entry point group `pilotlight.backends` (name = module).
"""

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from pilotlight.wire import model_formats
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
        "pilotlight_predictor.backends.torch.backend", ("torch", "pytorch", "pytorch_libtorch"),
        ("model.pt", "model.pt2", "model.safetensors"), numpy=True, graphs=True,  # numpy: in a model.py
    ),
    BackendEntry("pilotlight_predictor.backends.torch.aot.backend", ("aot",), ()),
    BackendEntry("pilotlight_predictor.backends.python.backend", ("python",), ("model.py",), numpy=True),
    BackendEntry(
        "pilotlight_predictor.backends.sklearn", ("sklearn",),
        ("model.joblib", "model.pkl", "model.pickle", "model.skops"),
    ),
    # Not `data`: their libraries are not hardened against malicious files.
    BackendEntry("pilotlight_predictor.backends.xgboost", ("xgboost",), ("model.bst", "model.json", "model.ubj")),
    BackendEntry("pilotlight_predictor.backends.lightgbm", ("lightgbm",), ("model.txt", "model.bst")),
    BackendEntry("pilotlight_predictor.backends.catboost", ("catboost",), ("model.cbm",)),
    BackendEntry("pilotlight_predictor.scheduling.ensemble", ("ensemble",), ()),
    BackendEntry("pilotlight_predictor.backends.text.backend", ("text", "transformers"), (), graphs=True, data=True),
    BackendEntry("pilotlight_predictor.backends.huggingface.backend", ("huggingface",), (), data=True),
    BackendEntry("pilotlight_predictor.backends.mlflow.backend", ("mlflow",), (), numpy=True),
    BackendEntry("pilotlight_predictor.backends.tensorflow", ("tensorflow_savedmodel",), ("model.savedmodel",)),
    BackendEntry(
        "pilotlight_predictor.backends.tensorflow", ("tensorflow_graphdef", "tensorflow"), ("model.graphdef",)
    ),
    BackendEntry("pilotlight_predictor.backends.tensorrt", ("tensorrt_plan", "tensorrt"), ("model.plan",)),
    BackendEntry("pilotlight_predictor.backends.caffe2", ("caffe2_netdef", "caffe2"), ("model.netdef",)),
)  # fmt: skip


def all_backends() -> tuple[BackendEntry, ...]:
    """The table and the backends of installed packages, which come last and cannot replace built-in ones."""
    return TABLE + tuple(BackendEntry(ep.value, (ep.name,), (), numpy=True) for ep in plugins("pilotlight.backends"))


def find_backend(name: str) -> BackendEntry | None:
    for candidate in TABLE:
        if name in candidate.names:
            return candidate
    return next((extra for extra in all_backends()[len(TABLE) :] if name in extra.names), None)


def backend_for_file(path: Path) -> BackendEntry | None:
    """The backend of a model file by its name; an existing file by its content where the name is ambiguous."""
    if known := model_formats.detect_file(path):
        return find_backend(known.format.backend)
    if path.suffix in {".json", ".txt"}:  # most of them are no models
        return None
    return next((row for row in TABLE if any(path.suffix == Path(name).suffix for name in row.files)), None)


def backend_for_folder(folder: Path) -> BackendEntry | None:
    """The backend of a folder that is a model as a whole: of MLflow, or in Hugging Face's layout."""
    if (folder / "MLmodel").is_file():
        return find_backend("mlflow")
    if not model_formats.huggingface_phrase(folder):
        return None
    return find_backend("text" if generates_text(folder) else "huggingface")


def generates_text(folder: Path) -> bool:
    """Whether the folder has a causal language model in Hugging Face's layout."""
    architectures = model_formats.huggingface_config(folder).get("architectures") or ()
    return any(str(name).endswith(("ForCausalLM", "LMHeadModel")) for name in architectures)


def module(entry: BackendEntry) -> ModuleType:
    return import_module(entry.module)
