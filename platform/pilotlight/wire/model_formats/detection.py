"""Which model format a path holds: by names first, then by the first bytes of a file. Executes nothing."""

import re
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any, Final, NamedTuple

from pilotlight.wire.model_formats.table import FORMATS, NAMED, PICKLE_SUFFIXES, ModelFormat, by_name

# Names that say too little: the file is opened. `.bst` is XGBoost's by name, and LightGBM's in KServe's layout.
_OPENED: Final = frozenset(
    {".pt", ".pth", ".ckpt", ".jit", ".bst", ".json", ".txt", ".model", ".bin", *PICKLE_SUFFIXES}
)
_HEAD: Final = 1 << 16
_MAX_CODE: Final = 1 << 20
_MAX_JSON: Final = 64 << 20
_TORCH_LEGACY: Final = b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."  # of torch.save before 1.6, after a protocol
WHOLE_MODULE: Final = "PyTorch module (pickle)"  # by torch.save(model, FILE)
# Classes, which a state dict has none of: of torch's layers anywhere, or of the object itself, which files before 1.6
# have after two nested dicts, with its source. torch.load(weights_only=True) refuses protocol 4 whatever it names.
_CLASSES: Final = re.compile(
    rb"ctorch\.nn\.modules\.|\A\x80[\4\5]"
    rb"|(?:\A|uu\.)\x80.(?:c(?!collections\n|torch\n|torch\._utils\n)|\(X\x06\0\0\0module)",
    re.DOTALL,
)
_PICKLED: Final = {
    b"sklearn.": "scikit-learn estimator", b"xgboost.": "XGBoost estimator", b"lightgbm.": "LightGBM estimator",
    b"catboost.": "CatBoost estimator", b"torch": "PyTorch object",
}  # fmt: skip
# What the Python backend runs; a model.py without it builds the module of the weights beside it.
_PYTHON_MODEL: Final = re.compile(
    rb"^(?:async )?def predict\b|^class (?:Model|TritonPythonModel)\b(?!\([^)]{,400}Module\))"
    rb"|^class \w{,400}\([^)]{,400}\bModel\)",
    re.MULTILINE,
)
_REPOSITORY: Final = ("*/config.pbtxt", "*/[0-9]*/model.*")
SAVE_TOKENIZER: Final = "save it there by tokenizer.save_pretrained(FOLDER)"
SETTINGS_FILE: Final = "model-settings.json"  # of MLServer
# Runtimes of MLServer by module; the class has the same words.
_MLSERVER: Final = {
    "mlserver_sklearn": "sklearn", "mlserver_xgboost": "xgboost", "mlserver_lightgbm": "lightgbm",
    "mlserver_catboost": "catboost", "mlserver_mlflow": "mlflow", "mlserver_huggingface": "huggingface",
    "mlserver_onnx": "onnx",
}  # fmt: skip


class Detected(NamedTuple):
    """Format of a path, the file or folder that holds the model, and what it is: "scikit-learn estimator (pickle)"."""

    format: ModelFormat
    file: Path
    phrase: str


def detect(path: Path) -> Detected | None:
    """Return the format of a file or folder; None if it is of none, or if a folder has models of several."""
    if not path.is_dir() or path.suffix == ".savedmodel":
        return detect_file(path)
    for row in FORMATS:
        if any(next(path.glob(sign), None) for sign in row.signs):
            return Detected(row, path, row.phrase)
    if known := mlserver_format(read_settings(path)):
        return Detected(known, path, f"{known.phrase} (settings of MLServer)")
    if phrase := huggingface_phrase(path):
        return Detected(NAMED["huggingface"], path, phrase)
    if is_repository(path):
        return Detected(NAMED["triton"], path, NAMED["triton"].phrase)
    models = _models(path)
    if len({model.format for model in models}) == 1:
        return only_model(path) or models[0]._replace(file=path)
    versions = [each for each in path.iterdir() if each.name.isdecimal() and each.is_dir()]
    newest = detect(max(versions, key=lambda each: int(each.name))) if versions and not models else None
    return newest._replace(file=path) if newest else only_model(path)


def is_repository(folder: Path) -> bool:
    """Whether a folder is a model repository of Triton: models in folders of their own, and none at its top."""
    signs = (each.relative_to(folder) for pattern in _REPOSITORY for each in folder.glob(pattern))
    if not any(is_in_repository(each) for each in signs):
        return False
    versions = any(each.name.isdecimal() and each.is_dir() for each in folder.iterdir())
    return not versions and all(is_script(model.file) for model in _models(folder))


def is_in_repository(path: PurePath) -> bool:
    """Whether a repository has a file at this path: NAME/config.pbtxt, or NAME/VERSION/model.*."""
    name, *rest = path.parts
    in_version = len(rest) > 1 and rest[0].isdecimal() and PurePath(rest[1]).stem == "model"
    return not name.isdecimal() and name[0] not in "._" and (rest == ["config.pbtxt"] or in_version)


def is_script(file: Path) -> bool:
    """Whether a file of Python is no model, such as a client or the training beside one."""
    return file.suffix == ".py" and file.name != "model.py" and not _PYTHON_MODEL.search(_head(file, _MAX_CODE))


def only_model(folder: Path, *, code: bool = False) -> Detected | None:
    """Return the model among the files of a folder: the only one, else the weights that a model.py builds the module
    of, or a model.py whose class loads them itself, or the only file beside one that has nothing to serve (without
    `code`), else the one called model.* (of several formats the first of the table), else the only one that is no code
    and no pickle, else the only one that is no code; None if that is not one."""
    models = _models(folder)
    named = sorted((m for m in models if m.file.stem == "model"), key=lambda model: FORMATS.index(model.format))
    files = [model for model in models if model.format.name != "python"]
    data = [model for model in files if model.format.name != "sklearn"]
    weights = [model for model in data if model.format.name in {"pytorch", "safetensors"}]
    own = [each for each in named if each.file.name == "model.py"]
    text = _head(own[0].file, _MAX_CODE) if own and named[0] in (*own, *weights) else b""
    if weights and text and _loads_itself(text):
        named, weights = own, []
    if not text or (named[0] in own and _PYTHON_MODEL.search(text)):
        weights = []
    helped = [] if code or weights or not text or not files or _may_serve(text) else files
    return next((each[0] for each in (models, weights, helped, named[:1], data, files) if len(each) == 1), None)


def _loads_itself(code: bytes) -> bool:
    """Whether a class with `predict`, which is no torch module itself, is served; it loads the weights beside it."""
    from pilotlight.wire.model_formats import python_code  # ast takes time of a cold start

    return any(python_code.has_method(each, python_code.METHODS) for each in python_code.plain_classes(code))


def _may_serve(code: bytes) -> bool:
    from pilotlight.wire.model_formats.python_code import may_serve

    return may_serve(code)


def _models(folder: Path) -> list[Detected]:
    visible = sorted(entry for entry in folder.iterdir() if not entry.name.startswith((".", "_")) and entry.exists())
    files = (entry for entry in visible if entry.suffix == ".savedmodel" or not entry.is_dir())
    return [model for entry in files if (model := detect_file(entry))]


def detect_file(path: Path) -> Detected | None:
    """Return the format of a file, or of a name; a SavedModel is a folder that counts as one."""
    if path.suffix.lower() in _OPENED and (known := _opened(path, _head(path))):
        return Detected(known[0], path, known[1])
    row = by_name(path.name)
    return Detected(row, path, row.phrase) if row else None


def _head(path: Path, size: int = _HEAD) -> bytes:
    """Return the first bytes of a file; none of a FIFO or device, which may not end."""
    if not path.is_file():
        return b""
    with path.open("rb") as file:
        return file.read(size)


def _opened(path: Path, head: bytes) -> tuple[ModelFormat, str] | None:
    """Return the format by the first bytes of a file, and what it is; None if they are of none."""
    if head.startswith(b"PK"):
        return _archive(path)
    if head.startswith(b"\x80") and _TORCH_LEGACY in head[:32]:
        return NAMED["pytorch"], WHOLE_MODULE if _CLASSES.search(head) else NAMED["pytorch"].phrase
    if head.startswith(b"tree\n") and b"version=" in head[:64]:
        return NAMED["lightgbm"], "LightGBM model (text)"
    if re.match(rb'\s*\{\s*"(learner|version)"', head) and b'"learner"' in head:
        return NAMED["xgboost"], "XGBoost model (JSON)"
    if head.startswith(b"{L\0\0\0") and b"learner" in head[:64]:
        return NAMED["xgboost"], "XGBoost model (UBJSON)"
    if head.startswith(b"\x80") and path.suffix.lower() in PICKLE_SUFFIXES:
        found = sorted((at, what) for sign, what in _PICKLED.items() if (at := head.find(sign)) >= 0)
        kind = "joblib pickle" if path.suffix.lower() == ".joblib" else "pickle"
        return NAMED["sklearn"], f"{found[0][1] if found else 'Python object'} ({kind})"
    return None


def _archive(path: Path) -> tuple[ModelFormat, str] | None:
    """Return the format of a zip archive of torch: TorchScript has code, torch.save data alone."""
    import zipfile
    import zlib

    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            pickled = next((name for name in names if name.endswith("/data.pkl")), None)
            head = archive.open(pickled).read(_HEAD) if pickled else b""
    except (OSError, RuntimeError, zipfile.BadZipFile, zlib.error):  # damaged, or encrypted
        return None
    if any(map(is_exported_program, names)):
        row = NAMED["torch-export"]
    elif any(name.endswith("/constants.pkl") for name in names):
        row = NAMED["torchscript"]
    elif pickled:
        row = NAMED["pytorch"]
        if _CLASSES.search(head):
            return row, WHOLE_MODULE
    else:
        return None
    return row, row.phrase


def is_exported_program(name: str) -> bool:
    """Whether a file of an archive is a program of torch.export.save."""
    return name.endswith("/models/model.json") or name == "serialized_exported_program.json"


def huggingface_phrase(folder: Path) -> str:
    """Return what a folder in Hugging Face's layout is; empty for any other, or one with its own model.py or ONNX."""
    if (folder / "model.py").exists() or (folder / "model.onnx").exists():
        return ""
    if (folder / "modules.json").is_file() and (folder / "config_sentence_transformers.json").is_file():
        return "sentence-transformers model (Hugging Face)"
    if (folder / "model_index.json").is_file():
        return "diffusers pipeline (Hugging Face)"
    config = huggingface_config(folder)
    if not config.get("model_type") and not config.get("architectures"):
        return ""
    return f"{next(iter(config.get('architectures') or ()), config.get('model_type'))} (Hugging Face)"


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder in Hugging Face's layout has a file of a tokenizer."""
    return any(next(folder.glob(name), None) for name in ("tokenizer*", "tekken*", "vocab*", "*.model", "*.spm"))


def pickled_weights(folder: Path, loader: str) -> str:
    """Return why the weights of a folder in Hugging Face's layout are not read, with the fix; empty: they are.

    `loader` names the class of transformers that reads them.
    """
    pickles = sorted(folder.glob("pytorch_model*.bin"))
    if not pickles or any(folder.glob("*.safetensors")):
        return ""
    fix = f"transformers.{loader}.from_pretrained(FOLDER).save_pretrained(FOLDER)"
    return f"{pickles[0].name} is a pickle, which is not read here: convert the weights to safetensors by {fix}"


def huggingface_config(folder: Path) -> Mapping[str, Any]:
    """Return the config.json of a folder; empty if it has none that can be read."""
    config = _json(folder / "config.json")
    return config if isinstance(config.get("architectures") or [], list) else {}


def read_settings(folder: Path) -> Mapping[str, Any]:
    """Return MLServer's model-settings.json of a folder; empty if it has none that can be read."""
    return _json(folder / SETTINGS_FILE)


def mlserver_format(settings: Mapping[str, Any]) -> ModelFormat | None:
    """Return the format of an MLServer runtime; None for one that is not known, such as a class of one's own."""
    return NAMED.get(_MLSERVER.get(str(settings.get("implementation", "")).partition(".")[0], ""))


def _json(path: Path) -> Mapping[str, Any]:
    import json

    try:
        if not path.is_file() or path.stat().st_size > _MAX_JSON:  # a FIFO or device would not end
            return {}
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
