"""onnxruntime's CUDA provider under our backend: does it run there, is it right, and what when it is not there?

    PYTHONPATH=platform:predictor python bench/gpu/onnx_provider.py MODEL.onnx > bench/results/onnx_provider.json

Needs onnxruntime-gpu, numpy and msgspec. Without the provider the backend falls back to the CPU and says so; the
document then shows that.
"""

import json
import logging
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from pilotlight_predictor.backends import onnxruntime as backends_onnxruntime
from pilotlight_predictor.backends.base import Device, LoadSpec
from pilotlight_predictor.core.requests import InferRequest
from pilotlight_predictor.core.tensors import Tensor
from pilotlight_predictor.repository.model_config import ModelConfig


class Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def main(path: Path) -> dict[str, Any]:
    heard = Heard()
    logging.getLogger("pilotlight").addHandler(heard)
    started = perf_counter()
    import onnxruntime

    imported = perf_counter() - started
    on_cpu, on_gpu = (_load(path, device) for device in (Device(), Device("cuda", 0)))
    x = np.random.default_rng(0).standard_normal((64, *on_cpu["shape"])).astype(np.float32)
    request = InferRequest("model", {on_cpu["input"]: Tensor("FP32", x)})
    reference, answer = (_answer(loaded["instance"], request) for loaded in (on_cpu, on_gpu))
    return {
        "onnxruntime": onnxruntime.__version__,
        "available_providers": onnxruntime.get_available_providers(),
        "session_providers": on_gpu["instance"].providers,
        "import_s": round(imported, 3),
        "load_cuda_s": round(on_gpu["seconds"], 3),
        "first_cuda_ms": round(answer["first_ms"], 3),
        "warm_cuda_ms": round(answer["warm_ms"], 3),
        "warm_cpu_ms": round(reference["warm_ms"], 3),
        "max_difference_from_cpu": float(np.abs(reference["y"] - answer["y"]).max()),
        "said": heard.lines,
    }


def _load(path: Path, device: Device) -> dict[str, Any]:
    started = perf_counter()
    instance = backends_onnxruntime.load(LoadSpec(ModelConfig("model"), 1, path, path.parent, device))
    name, _, shape, _ = instance.inputs[0]
    fixed = tuple(1 if dim < 0 else dim for dim in shape[1:])
    return {"instance": instance, "seconds": perf_counter() - started, "input": name, "shape": fixed}


def _answer(instance: Any, request: InferRequest) -> dict[str, Any]:
    times = []
    for _ in range(50):
        started = perf_counter()
        outputs = instance.execute([request])[0]
        times.append((perf_counter() - started) * 1000)
    return {"y": next(iter(outputs.values())).array, "first_ms": times[0], "warm_ms": sorted(times)[len(times) // 2]}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1])), indent=2))
