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
    """Return the whole file with comments."""
    head = [
        f"# {mode.capitalize()}: {reason}.",
        f"#   platformctl explain -f {file}    every decision and its reason",
        f"#   platformctl render -f {file}     the manifests that it amounts to",
    ]
    body = _ome(model, answers, mode) if model.known else _kserve(model, answers, mode)
    return "\n".join([*head, *body]) + "\n"


def _kserve(model: Model, answers: Answers, mode: Mode) -> list[str]:
    """A KServe document: the model by its storage URI."""
    code = model.format == "python"
    workers = ["    workerSpec:", f"      pipelineParallelSize: {answers.nodes}  # nodes of one replica"]
    return [
        "apiVersion: serving.kserve.io/v1beta1", "kind: InferenceService", "metadata:", f"  name: {model.name}",
        "  annotations:", f"    serving.kserve.io/deploymentMode: {'Knative' if mode == 'serverless' else 'Standard'}",
        *_latency(answers, mode, "serving.kserve.io"),
        "spec:", "  predictor:", *_replicas(answers, mode), *(workers if mode == "multi-node" else []),
        "    model:", "      modelFormat:", f"        name: {_text(model.format)}",
        *(["      protocolVersion: v2"] if model.format in OURS else []),
        "      # Where the cluster's nodes find it: s3://…, gs://…, pvc://…, hf://…. A path is for this machine alone.",
        f"      storageUri: {_text(model.uri)}",
        # A model in Python may declare no inputs, so that no warm-up can be made for it.
        *(["      # example: ./example.json  # a request that it must answer before it is ready"] if code else []),
        *_indented(_resources(answers, model.size), "      "),
    ]  # fmt: skip


def _ome(model: Model, answers: Answers, mode: Mode) -> list[str]:
    """An OME document: the model by its name in the catalogue, which knows size, format and runtimes."""
    latency = _latency(answers, mode, "ome.io")
    workers = ["    worker:", f"      size: {answers.nodes - 1}  # nodes beside the leader"]
    runner = ["    runner:", *_indented(["resources:", "  limits:", f'    nvidia.com/gpu: "{answers.gpus}"'], "      ")]
    return [
        "apiVersion: ome.io/v1beta1", "kind: InferenceService", "metadata:", f"  name: {model.name}",
        *(["  annotations:", *latency] if latency else []),
        "spec:", "  model:", f"    name: {_text(model.known)}",
        "  engine:", *_replicas(answers, mode), *(workers if mode == "multi-node" else []),
        *(runner if answers.gpus else []),
    ]  # fmt: skip


def _latency(answers: Answers, mode: Mode, group: str) -> list[str]:
    if mode != "raw" or not answers.latency:
        return []
    return [
        f"    {group}/autoscalerClass: keda",
        "    # More replicas when the 95th percentile of the latency is above this many seconds.",
        f"    pilotlight.dev/triggers: latency={answers.latency:g}",
    ]


def _replicas(answers: Answers, mode: Mode) -> list[str]:
    least = "0  # nothing runs while nobody asks" if mode == "serverless" else "1  # always ready"
    lines = [f"    minReplicas: {least}", "    maxReplicas: 3  # the most that may run, and cost"]
    if mode == "serverless":
        lines += [
            "    scaleMetric: concurrency",
            "    scaleTarget: 8  # requests at a time that one replica should have",
        ]
    elif mode == "raw" and not answers.latency:
        lines += ["    scaleMetric: cpu", "    scaleTarget: 70  # percent of the CPU that is requested"]
    return lines


def _resources(answers: Answers, size: int) -> list[str]:
    """Memory is written where the model's size is known; else a plan has a default for it."""
    memory = f"memory: {max(LEAST_MEMORY, 2 * size) // 2**20}Mi" if size else "# memory: 4Gi"
    gpus = [f'    nvidia.com/gpu: "{answers.gpus}"'] if answers.gpus else []
    limits = ["  limits:", f"    {memory}  # at least twice the model's size", *gpus]
    return ["resources:", '  requests: {cpu: "1"}', *(limits if size or gpus else [])]


def _indented(lines: list[str], indent: str) -> list[str]:
    return [indent + line for line in lines]


def _text(value: str) -> str:
    """Return a YAML scalar, quoted if it could be read as another type."""
    plain = re.fullmatch(r"(?:\.{0,2}/|[A-Za-z])[A-Za-z0-9_./@+-]*(?:://[A-Za-z0-9_./@+-]+)?", value)
    if plain and value.lower() not in WORDS:
        return value
    import yaml

    # Not json.dumps: it escapes characters beyond U+FFFF as surrogate pairs, which YAML reads as two characters.
    quoted: str = yaml.safe_dump(value, default_style='"', width=2**31)
    return quoted.strip()
