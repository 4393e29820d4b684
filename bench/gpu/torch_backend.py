"""The torch backend on a GPU, without a server: cold-start phases, precisions, streams, and a real out-of-memory.

    python bench/gpu/torch_backend.py > bench/results/torch_backend.json

Needs torch, safetensors and numpy alone; prints one JSON document. `--device cpu --gigabytes 0.05` tries it anywhere.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "predictor"))

import numpy as np

from pilotlight_predictor.backends.base import Device, LoadSpec
from pilotlight_predictor.backends.torch import backend
from pilotlight_predictor.core.tensors import Tensor, tensor
from pilotlight_predictor.errors import LoadFailed, PredictorError
from pilotlight_predictor.repository.model_config import ModelConfig, TensorConfig

WIDTH = 4096
SMALL = 256
STACK = """
import torch

class Stack(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear({width}, {width}, bias=False) for _ in range({layers}))

    def forward(self, x):
        for layer in self.layers:
            x = torch.nn.functional.gelu(layer(x))
        return x

build = Stack
"""
HUNGRY = """
import torch

class Hungry(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one = torch.nn.Parameter(torch.ones(1))

    def forward(self, mebibytes):
        work = torch.empty(int(mebibytes.sum()) << 20, dtype=torch.uint8, device=mebibytes.device)
        return mebibytes * self.one + 0 * work[:1]

build = Hungry
"""


def make(folder: Path, gigabytes: float) -> None:
    """Writes all models; in a process of its own, so that the measured one imports torch for the first time."""
    import torch

    torch.manual_seed(0)
    layers = max(1, round(gigabytes * 1e9 / (WIDTH * WIDTH * 2)))
    _write(folder / "large", STACK.format(width=WIDTH, layers=layers), _stack(WIDTH, layers, torch.bfloat16))
    small = _stack(SMALL, 4, torch.float32)
    _write(folder / "small", STACK.format(width=SMALL, layers=4), small)
    _write(folder / "hungry", HUNGRY, {"one": torch.ones(1)})
    module = torch.nn.Sequential(*(part for _ in range(2) for part in (torch.nn.Linear(SMALL, SMALL), torch.nn.GELU())))
    rows = {0: torch.export.Dim("rows", min=1, max=1024)}
    program = torch.export.export(module.eval(), (torch.ones(2, SMALL),), dynamic_shapes=({**rows},))
    torch.export.save(program, folder / "model.pt2")
    torch.jit.trace(module, torch.ones(2, SMALL)).save(folder / "model.pt")


def _stack(width: int, layers: int, dtype: Any) -> dict[str, Any]:
    import torch

    scale, device = 1.5 / width**0.5, "cuda" if torch.cuda.is_available() else "cpu"  # gigabytes take a CPU minutes
    made = ((torch.randn(width, width, device=device) * scale).to(dtype).cpu() for _ in range(layers))
    return {f"layers.{i}.weight": weight for i, weight in enumerate(made)}


def _write(folder: Path, source: str, weights: Mapping[str, Any]) -> None:
    from safetensors.torch import save_file

    folder.mkdir()
    (folder / "model.py").write_text(source)
    save_file(dict(weights), folder / "model.safetensors")


def spec(
    path: Path, device: Device, precision: str = "auto", names: tuple[str, str] = ("x", "y"), rows: int = 64
) -> LoadSpec:
    config = ModelConfig(
        name=path.parent.name,
        max_batch_size=rows,
        inputs=(TensorConfig(names[0], "FP32", (-1,)),),
        outputs=(TensorConfig(names[1], "FP32", (-1,)),),
    )
    return LoadSpec(config, 1, path, path.parent, device, precision)


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    start = perf_counter()
    result = call()
    return perf_counter() - start, result


def cold_start(folder: Path, device: Device) -> dict[str, Any]:
    """Phases of one process that serves the large model."""
    import_s, _ = timed(backend.prepare)
    import torch

    context_s, _ = timed(lambda: torch.zeros(1, device=str(device)).sum().item())
    path = folder / "large" / "model.safetensors"
    load_s, instance = timed(lambda: backend.load(spec(path, device)))
    x = {"x": tensor(np.ones((1, WIDTH), np.float32))}
    first_s, outputs = timed(lambda: instance.run(x))
    warm = [timed(lambda: instance.run(x))[0] for _ in range(30)]
    finite = bool(np.isfinite(outputs["y"].array).all())
    instance.close()
    size = path.stat().st_size
    return {
        "bytes": size, "import_torch_s": import_s, "cuda_context_s": context_s,
        "load_s": load_s, "load_gb_per_s": size / load_s / 1e9, "first_answer_s": first_s,
        "warm_answer_ms": median(warm) * 1e3, "answer_is_finite": finite,
    }  # fmt: skip


def precisions(folder: Path, device: Device) -> dict[str, Any]:
    """The largest difference from the CPU in fp32, relative to the largest value."""
    path = folder / "small" / "model.safetensors"
    x = {"x": tensor(np.random.default_rng(0).standard_normal((32, SMALL), np.float32))}
    exact = backend.load(spec(path, Device())).run(x)["y"].array
    found: dict[str, Any] = {}
    for precision in ("fp32", "fp16", "bf16"):
        instance = backend.load(spec(path, device, precision))
        answer = instance.run(x)["y"]
        warm = [timed(lambda run=instance.run: run(x))[0] for _ in range(50)]  # type: ignore[misc]
        found[precision] = {"error": _error(answer, exact), "warm_answer_ms": median(warm) * 1e3}
        instance.close()
    return found


def _error(answer: Tensor, exact: Any) -> float:
    assert answer.datatype == "FP32"
    return float(np.abs(answer.array - exact).max() / np.abs(exact).max())


def formats(folder: Path, device: Device) -> dict[str, Any]:
    """TorchScript and exported programs on the device, against the CPU."""
    x = tensor(np.random.default_rng(1).standard_normal((8, SMALL), np.float32))
    found: dict[str, Any] = {}
    for name in ("model.pt", "model.pt2"):
        names = ("INPUT__0", "OUTPUT__0")
        exact = backend.load(spec(folder / name, Device(), names=names)).run({"INPUT__0": x})["OUTPUT__0"].array
        instance = backend.load(spec(folder / name, device, names=names))
        found[name] = _error(instance.run({"INPUT__0": x})["OUTPUT__0"], exact)
    return found


def two_streams(folder: Path, device: Device) -> dict[str, Any]:
    """An instance and its clone at the same time, each in its own thread, each answer checked."""
    first = backend.load(spec(folder / "small" / "model.safetensors", device))
    second = first.clone()
    rows = [np.full((64, SMALL), value, np.float32) for value in (0.5, -0.25)]
    exact = [first.run({"x": tensor(row)})["y"].array for row in rows]
    serial, _ = timed(lambda: [_hammer(first, row, want) for row, want in zip(rows, exact, strict=True)])
    wrong: list[int] = []
    threads = [
        threading.Thread(target=lambda i=instance, r=row, w=want: wrong.append(_hammer(i, r, w)))
        for instance, row, want in zip((first, second), rows, exact, strict=True)
    ]
    start = perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {
        "wrong_answers": sum(wrong), "serial_s": serial, "together_s": perf_counter() - start,
        "own_streams": first._stream != second._stream or device.kind == "cpu",
    }  # fmt: skip


def _hammer(instance: Any, rows: Any, want: Any, times: int = 300) -> int:
    answers = (instance.run({"x": tensor(rows)})["y"].array for _ in range(times))
    return sum(not np.allclose(answer, want, rtol=1e-3, atol=1e-5) for answer in answers)


def out_of_memory(folder: Path, device: Device) -> dict[str, Any]:
    """A batch of 1.2 times the free memory succeeds in halves; one of 3 times fails with advice."""
    import torch

    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info(device.index)[0] >> 20
    instance = backend.load(spec(folder / "hungry" / "model.safetensors", device, names=("mebibytes", "y")))
    fits = np.full((8, 1), free * 1.2 // 8, np.float32)
    took, outputs = timed(lambda: instance.run({"mebibytes": tensor(fits)}))
    answered = bool(np.array_equal(outputs["y"].array, fits))
    try:
        instance.run({"mebibytes": tensor(fits * 2.5)})
        advice = "no error"
    except PredictorError as error:
        advice = str(error)
    after = instance.run({"mebibytes": tensor(np.ones((8, 1), np.float32))})["y"].array
    return {
        "free_mib": free, "answered_in_halves": answered, "answer_s": took, "beyond_halves": advice,
        "serves_afterwards": bool((after == 1).all()),
    }  # fmt: skip


def measure(folder: Path, device: Device) -> dict[str, Any]:
    found: dict[str, Any] = {"device": str(device), "cold_start": cold_start(folder, device)}
    import torch

    found["torch"] = torch.__version__
    found["gpu"] = torch.cuda.get_device_name(device.index) if device.kind == "cuda" else None
    for part in (precisions, formats, two_streams, out_of_memory):
        if part is out_of_memory and device.kind == "cpu":
            continue
        try:
            found[part.__name__] = part(folder, device)
        except (LoadFailed, PredictorError, RuntimeError, AssertionError) as error:
            found[part.__name__] = {"failed": f"{type(error).__name__}: {error}", "cause": repr(error.__cause__)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=2.0, help="size of the large model's bf16 weights")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.make:
        make(options.make, options.gigabytes)
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--make", folder, "--gigabytes", str(options.gigabytes)]
        subprocess.run(command, check=True, stdout=sys.stderr)
        print(json.dumps(measure(Path(folder), Device(options.device)), indent=2))


if __name__ == "__main__":
    main()
