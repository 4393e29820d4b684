"""What each server reads at its start: a model repository or settings folder, written for the models of a case."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from bench.models import MAX_BATCH, Model
from bench.table_models import RUNTIMES

PEERS = Path(__file__).parent / "peers"

TRITON_CONFIG = """\
name: "{name}"
backend: "python"
max_batch_size: {max_batch}
input [{{ name: "x" data_type: TYPE_FP32 dims: {row_in} }}]
output [{{ name: "y" data_type: TYPE_FP32 dims: {row_out} }}]
dynamic_batching {{ }}
instance_group [{{ count: 1 kind: KIND_CPU }}]
parameters {{ key: "onnx" value {{ string_value: "{path}" }} }}
"""


def onnx_repository(directory: Path, models: Sequence[Model]) -> Path:
    """<name>/1/model.onnx, with no configuration: Pilotlight derives it from the file."""
    for model in models:
        version = _empty(directory / model.name) / "1"
        version.mkdir()
        shutil.copy(model.path, version / "model.onnx")
    return directory


def triton_repository(directory: Path, models: Sequence[Model]) -> Path:
    for model in models:
        home = _empty(directory / model.name)
        (home / "1").mkdir()
        shutil.copy(PEERS / "triton_model.py", home / "1" / "model.py")
        values = {"row_in": list(model.row_in), "row_out": list(model.row_out), "path": model.path}
        (home / "config.pbtxt").write_text(TRITON_CONFIG.format(name=model.name, max_batch=MAX_BATCH, **values))
    return directory


def mlserver_folder(directory: Path, models: Sequence[Model], ports: tuple[int, int, bool]) -> Path:
    """Every log of a request, and the metrics server, are off; gRPC cannot be turned off."""
    _empty(directory)
    http_port, grpc_port, _ = ports
    settings = {"http_port": http_port, "grpc_port": grpc_port, "metrics_endpoint": None}
    settings |= {"grpc_max_message_length": 100 << 20}
    _write_json(directory / "settings.json", {**settings, "parallel_workers": 0, "debug": False, "gzip_enabled": False})
    shutil.copy(PEERS / "mlserver_model.py", directory / "mlserver_model.py")
    for model in models:
        implementation, uri = RUNTIMES.get(model.name, "mlserver_model.OnnxModel"), str(model.path)
        parameters: dict[str, object] = {"uri": uri}
        if model.path.is_dir():
            implementation = "mlserver_huggingface.HuggingFaceRuntime"
            parameters = {"extra": {"task": "text-classification", "pretrained_model": uri}}
        (directory / model.name).mkdir()
        _write_json(
            directory / model.name / "model-settings.json",
            {"name": model.name, "implementation": implementation, "parameters": parameters},
        )
    return directory


def _empty(directory: Path) -> Path:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    return directory


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2))
