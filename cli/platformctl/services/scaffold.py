"""Commented service.yaml from a model and a few answers, for `init`. Reads the model's files only.

The mode: multi-node if one node is not enough, raw if cold starts are not acceptable or the load is steady, else
serverless.
"""

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, Literal

Mode = Literal["serverless", "raw", "multi-node"]
Load = Literal["steady", "variable"]

# Model formats by file suffix.
SUFFIXES: Final = {
    ".onnx": "onnx", ".pt": "torchscript", ".ts": "torchscript", ".torchscript": "torchscript", ".pt2": "torch-export",
    ".safetensors": "safetensors", ".py": "python", ".joblib": "sklearn", ".pkl": "sklearn", ".pickle": "sklearn",
    ".bst": "xgboost", ".ubj": "xgboost", ".pmml": "pmml", ".mar": "pytorch",
}  # fmt: skip
# Model formats by a file in the directory, the most reliable sign first.
SIGNS: Final = {
    "config.pbtxt": "triton", "*/config.pbtxt": "triton", "saved_model.pb": "tensorflow",
    "*/saved_model.pb": "tensorflow", "model.py": "python", "*/model.py": "python", "MLmodel": "mlflow",
    "config.json": "huggingface",
}  # fmt: skip
# Formats of our own predictor, which serves V2.
OURS: Final = ("onnx", "torchscript", "torch-export", "safetensors", "python", "triton")
# Generic names of model files and folders: the parent folder names the model.
ANONYMOUS: Final = ("model", "models", "repository", "1")
# Scalars that a YAML reader may take for a boolean or null.
WORDS: Final = ("true", "false", "yes", "no", "on", "off", "y", "n", "null")
LEAST_MEMORY: Final = 512 * 2**20


@dataclass(frozen=True, slots=True)
class Answers:
    """Inputs of the recommendation. `nodes` per replica; `latency` in seconds, 0: scale by load alone."""

    load: Load = "variable"
    cold_starts: bool = True
    nodes: int = 1
    gpus: int = 0
    latency: float = 0.0


@dataclass(frozen=True, slots=True)
class Model:
    """`uri` and `format`, or `known`: its name in the catalogue."""

    name: str
    uri: str = ""
    format: str = ""
    known: str = ""
    size: int = 0


def recommend(answers: Answers) -> tuple[Mode, str]:
    """Return the mode and its reason."""
    if answers.nodes > 1:
        return "multi-node", f"one replica needs {answers.nodes} nodes"
    if not answers.cold_starts:
        return "raw", "no request may wait for a cold start"
    if answers.load == "steady":
        return "raw", "the load is steady, so there is no idle time to save"
    return "serverless", "the load varies, and idle time shall cost nothing"


def format_of(uri: str) -> str:
    """Detect the format by the file's suffix or the directory's content; empty: unknown."""
    if uri.startswith(("hf://", "hf_model://")) and not PurePosixPath(uri).suffix:
        return "huggingface"
    path = Path(uri)
    if path.is_dir():
        signs = (known for sign, known in SIGNS.items() if any(path.glob(sign)))
        formats = {SUFFIXES[each.suffix] for each in path.iterdir() if each.suffix in SUFFIXES}
        return next(signs, "") or (formats.pop() if len(formats) == 1 else "")
    return SUFFIXES.get(PurePosixPath(uri).suffix, "")


def size_of(uri: str) -> int:
    path = Path(uri)
    if path.is_dir():
        return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
    return path.stat().st_size if path.is_file() else 0


def name_for(uri: str) -> str:
    """Derive a service name from a path; a generic file name is replaced by its folder's."""
    path = PurePosixPath(uri.partition("://")[2] or uri)
    parts = [*path.parent.parts, path.stem if path.suffix in SUFFIXES else path.name]
    words = next((part for part in reversed(parts) if part not in ANONYMOUS), parts[-1])
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-").lstrip("0123456789-")[:40].rstrip("-") or "model"


def document(model: Model, answers: Answers, mode: Mode, reason: str, file: str) -> str:
    """Return the whole file with comments: of OME for a model of the catalogue, else of KServe."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    jinja = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, autoescape=False,  # noqa: S701 - YAML
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    jinja.filters["scalar"] = _text
    return jinja.get_template("service.yaml.j2").render(
        model=model, answers=answers, mode=mode, reason=reason, file=file, ours=OURS,
        latency=answers.latency if mode == "raw" else 0.0, memory_mib=max(LEAST_MEMORY, 2 * model.size) // 2**20,
    )  # fmt: skip


def _text(value: str) -> str:
    """Return a YAML scalar, quoted if it could be read as another type."""
    plain = re.fullmatch(r"(?:\.{0,2}/|[A-Za-z])[A-Za-z0-9_./@+-]*(?:://[A-Za-z0-9_./@+-]+)?", value)
    if plain and value.lower() not in WORDS:
        return value
    import yaml

    # Not json.dumps: it escapes characters beyond U+FFFF as surrogate pairs, which YAML reads as two characters.
    quoted: str = yaml.safe_dump(value, default_style='"', width=2**31)
    return quoted.strip()
