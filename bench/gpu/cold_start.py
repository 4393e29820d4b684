"""Cold start of a large torch model on a GPU, way by way: exec → ready → first answer over HTTP.

    PYTHONPATH=platform:predictor python bench/gpu/cold_start.py FOLDER [GIGABYTES] [REPETITIONS] > cold_start.json

FOLDER gets the weights, and what is compiled. Beside the server: `import torch` alone, and the naive way of loading.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import serve

WIDTH = 4096
MODULE = f"""
import torch

INPUTS = {{"x": ("FP32", [-1, {WIDTH}])}}
OUTPUTS = {{"y": ("FP32", [-1, {WIDTH}])}}


class Stack(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        made = [torch.nn.Linear({WIDTH}, {WIDTH}, bias=False, dtype=torch.bfloat16) for _ in range(LAYERS)]
        self.layers = torch.nn.ModuleList(made)

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x)) * 0.5 + x * 0.5
        return x


def build():
    return Stack()
"""
WEIGHTS = """
import sys, torch
from safetensors.torch import save_file
folder, layers, width = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.manual_seed(1)
made = {}
for i in range(layers):
    made[f"layers.{i}.weight"] = (torch.randn(width, width, device="cuda") * 0.02).to(torch.bfloat16).cpu()
save_file(made, f"{folder}/model.safetensors")
"""
NAIVE = """
import sys, time, torch
from safetensors.torch import load_file
weights = load_file(sys.argv[1], device="cuda")
x = torch.ones(1, 4096, device="cuda", dtype=torch.bfloat16)
for w in weights.values():
    x = torch.relu(x @ w.T) * 0.5 + x * 0.5
torch.cuda.synchronize()
"""


def main(folder: Path, gigabytes: float, repetitions: int) -> dict[str, Any]:
    layers = max(1, round(gigabytes * 1e9 / (2 * WIDTH * WIDTH)))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.py").write_text(MODULE.replace("LAYERS", str(layers)))
    told: dict[str, Any] = {"layers": layers}
    told["weights_written_s"] = timed("-c", WEIGHTS, str(folder), str(layers), str(WIDTH))
    weights = folder / "model.safetensors"
    told["gigabytes"] = round(weights.stat().st_size / 1e9, 2)
    timed("-c", "import torch")  # the machine's first one reads the disk
    told["import_torch_s"] = middle([timed("-c", "import torch") for _ in range(repetitions)])
    told["naive_s"] = middle([timed("-c", NAIVE, str(weights)) for _ in range(repetitions)])
    told["torch"] = served(folder, repetitions)
    with pilot_light(folder / "pilot.sock") as pilot:
        told["pilot_light"] = served(folder, repetitions, pilot=pilot)
    told["compile_s"] = timed("-m", "pilotlight_predictor", "compile", str(folder), "--device", "cuda")
    told["aot"] = served(folder, repetitions, "--trust-compiled", str(folder))
    told["difference"] = difference(told["torch"].pop("answer"), told["aot"].pop("answer"))
    del told["pilot_light"]["answer"]
    told["torch_over_import"] = round(told["torch"]["answer_s"] / told["import_torch_s"], 3)
    return told


def timed(*words: str) -> float:
    started = perf_counter()
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{words[:2]} failed: {done.stderr[-2000:]}")
    return round(perf_counter() - started, 3)


def middle(found: list[float]) -> float:
    return round(median(found), 3)


@contextmanager
def pilot_light(path: Path) -> Iterator[Path]:
    path.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "pilotlight_predictor.bootstrap.forkserver",
        "--socket",
        str(path),
        "--family",
        "torch",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not path.exists():
            sleep(0.05)
        yield path
    finally:
        process.terminate()
        process.wait(30)


def served(folder: Path, repetitions: int, *flags: str, pilot: Path | None = None) -> dict[str, Any]:
    runs = [serve.run(str(folder), "x", WIDTH, flags, pilot) for _ in range(repetitions)]
    return {
        "ready_s": middle([run["ready_s"] for run in runs]),
        "answer_s": middle([run["answer_s"] for run in runs]),
        "call_ms": middle([run["call_ms"] for run in runs]),
        "phases": [run["phases"] for run in runs],
        "answer": runs[0]["answer"],
    }


def difference(a: list[float], b: list[float]) -> float:
    """The largest, as a share of the largest value."""
    return max(abs(x - y) for x, y in zip(a, b, strict=True)) / max(map(abs, a))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("gigabytes", type=float, nargs="?", default=8.6)
    parser.add_argument("repetitions", type=int, nargs="?", default=3)
    given = parser.parse_args()
    print(json.dumps(main(given.folder, given.gigabytes, given.repetitions), indent=2))
