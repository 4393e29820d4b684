"""Table of model formats: the names they go by, the files they have, and what serves them."""

from pathlib import PurePath
from typing import Final, NamedTuple


class ModelFormat(NamedTuple):
    """One format: `name` as in modelFormat.name of a service, and `phrase` for messages.

    `backend` of our predictor, empty if it has none; `extra`: what pip must install for it (`pilotlight[EXTRA]`).
    `signs`: files that mark a folder, as patterns.
    """

    name: str
    phrase: str
    backend: str = ""
    extra: str = ""
    aliases: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = ()
    signs: tuple[str, ...] = ()


PICKLE_SUFFIXES: Final = (".pkl", ".pickle", ".joblib")
FORMATS: Final = (
    ModelFormat("triton", "Triton model repository", signs=("config.pbtxt", "*/config.pbtxt")),
    ModelFormat("mlflow", "MLflow model", "mlflow", "mlflow", signs=("MLmodel",)),
    ModelFormat("onnx", "ONNX model", "onnxruntime", "onnx", ("onnxruntime",), (".onnx",)),
    ModelFormat(
        "torchscript", "TorchScript module", "torch", "torch", ("libtorch",), (".pt", ".ts", ".torchscript")
    ),
    ModelFormat("torch-export", "exported PyTorch program", "torch", "torch", ("pt2",), (".pt2",)),
    ModelFormat("safetensors", "weights (safetensors)", "torch", "torch", (), (".safetensors",)),
    ModelFormat("pytorch", "PyTorch weights (torch.save)", "torch", "torch", ("torch",), (".pth", ".ckpt", ".jit")),
    # Before the formats below: a model.py beside one of their files reads it. Of the ones above it is a part.
    ModelFormat("python", "Python model", "python", suffixes=(".py",)),
    ModelFormat(
        "sklearn", "scikit-learn estimator", "sklearn", "sklearn", ("scikit-learn", "scikit_learn", "skops"),
        (*PICKLE_SUFFIXES, ".skops"),
    ),
    ModelFormat("xgboost", "XGBoost model", "xgboost", "xgboost", ("xgb",), (".bst", ".ubj", ".xgb")),
    ModelFormat("lightgbm", "LightGBM model", "lightgbm", "lightgbm", ("lgbm", "lgb"), (".lgb",)),
    ModelFormat("catboost", "CatBoost model", "catboost", "catboost", (), (".cbm",)),
    ModelFormat("pmml", "PMML document", suffixes=(".pmml",)),
    ModelFormat(
        "tensorflow", "TensorFlow SavedModel", "tensorflow_savedmodel", "tensorflow", ("tf", "savedmodel"),
        (".savedmodel",), ("saved_model.pb", "*/saved_model.pb"),
    ),
    ModelFormat("tensorflow", "TensorFlow graph", "tensorflow_graphdef", "tensorflow", (), (".graphdef",)),
    ModelFormat("tensorrt", "TensorRT engine", "tensorrt_plan", "tensorrt", ("trt",), (".plan", ".engine")),
    ModelFormat("caffe2", "Caffe2 network", "caffe2_netdef", suffixes=(".netdef",)),
    ModelFormat("gguf", "GGUF weights", aliases=("llama.cpp", "llamacpp", "llama-cpp"), suffixes=(".gguf",)),
    ModelFormat("pytorch", "TorchServe archive", suffixes=(".mar",)),
    ModelFormat("huggingface", "Hugging Face model", "text", "text", ("transformers", "text", "hf", "hugging-face")),
)  # fmt: skip
NAMED: Final = {name: row for row in reversed(FORMATS) for name in (row.name, *row.aliases)}
_SUFFIXES: Final = {suffix: row for row in reversed(FORMATS) for suffix in row.suffixes}


def find_format(name: str) -> ModelFormat | None:
    """Return a format by its name or an alias, in any case."""
    return NAMED.get(name.lower())


def canonical_name(name: str) -> str:
    """Return the name of a format for an alias such as `torch` or `scikit-learn`; an unknown name as it is."""
    row = find_format(name)
    return row.name if row else name


def by_name(filename: str) -> ModelFormat | None:
    """Return the format that a file name suggests; None for one that many formats share, such as model.json."""
    return _SUFFIXES.get(PurePath(filename).suffix.lower())
