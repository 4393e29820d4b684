"""Table of model formats: the names they go by, the files they have, and what serves them."""

import os
import re
from pathlib import Path, PurePath, PurePosixPath
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


# Generic names of model files and folders: the parent folder names the model.
ANONYMOUS: Final = ("model", "models", "repository")
PICKLE_SUFFIXES: Final = (".pkl", ".pickle", ".joblib")
# What trees, neighbours, networks, steps of pipelines and estimators of LightGBM have in files of skops beside what
# skops trusts. Making them runs no code but that of scikit-learn, numpy and LightGBM; the predictor checks the indices
# in trees, which these do not. MLflow trusts the same of LightGBM.
SKOPS_TYPES: Final = frozenset({
    "numpy.dtype", "sklearn.tree._tree.Tree", "sklearn.neighbors._kd_tree.KDTree",
    "sklearn.neighbors._ball_tree.BallTree", "sklearn.neural_network._stochastic_optimizers.AdamOptimizer",
    "sklearn.neural_network._stochastic_optimizers.SGDOptimizer", "sklearn.calibration._CalibratedClassifier",
    "sklearn.calibration._SigmoidCalibration", "lightgbm.sklearn.LGBMClassifier", "lightgbm.sklearn.LGBMRegressor",
    "lightgbm.basic.Booster", "collections.OrderedDict",
    *(f"sklearn.metrics._dist_metrics.{name}64" for name in ("ChebyshevDistance", "EuclideanDistance",
      "ManhattanDistance", "MinkowskiDistance")),
    *(f"sklearn.feature_selection._univariate_selection.{name}" for name in ("chi2", "f_classif", "f_regression")),
})  # fmt: skip
FORMATS: Final = (
    ModelFormat("triton", "Triton model repository", signs=("config.pbtxt",)),
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


def split_object(word: str) -> tuple[str, str]:
    """Return the path and the class or function of `model.py:Class` or `FOLDER:Class`; "" of any other word."""
    path, _, name = word.rpartition(":")
    named = name.isidentifier() and (path.endswith(".py") or os.path.isdir(path))
    return (path, name) if named else (word, "")


def model_name(word: str) -> str:
    """Return the name of a model by its path, URI, `model.py:Class` or `FOLDER:Class`."""
    path, name = split_object(word)
    if not name and "://" not in path:
        file = Path(path).resolve()
        path = str(file if file.is_dir() or by_name(file.name) else file.with_suffix(""))
    return name_for(name or path)


def name_for(uri: str) -> str:
    """Derive a service name from a path; a generic file name or the number of a version is replaced by its folder's."""
    path = PurePosixPath(uri.partition("://")[2] or uri)
    parts = [*path.parent.parts, path.stem if by_name(path.name) else path.name]
    generic = {*ANONYMOUS, *filter(str.isdecimal, path.parts)}
    words = next((part for part in reversed(parts) if part not in generic), parts[-1])
    name = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")
    return (name if name[:1].isalpha() else f"model-{name}")[:40].rstrip("-")
