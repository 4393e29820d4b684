"""What load.py measures without a server: the bare loop, the backend by itself, and whether graphs answer alike.

Prints one JSON document. The bare loop copies a batch from host memory, runs the module, copies the result back and
synchronises, as a plain program does; `eager_pinned` from pinned memory, `graph` by a CUDA graph beside.
"""

import argparse
import json
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "predictor"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "platform"))

import load_models
import numpy as np

from pilotlight_predictor.backends.base import Device, LoadSpec
from pilotlight_predictor.backends.torch import backend as torch_backend
from pilotlight_predictor.core.requests import InferRequest
from pilotlight_predictor.core.tensors import tensor
from pilotlight_predictor.repository.config_reader import config_from_pbtxt

COUNTER = """
import torch

INPUTS = {"x": ("FP32", [-1, 4])}
OUTPUTS = {"y": ("FP32", [-1, 4])}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one = torch.nn.Parameter(torch.ones(1))

    def forward(self, x):
        return x * self.one if x.sum().item() >= 0 else -x


build = Net
"""


class Alone:
    def __init__(self, options: argparse.Namespace) -> None:
        self.folder, self.small, self.seconds = options.folder, options.small, options.seconds
        self.device = options.device

    def parts(self) -> dict[str, Any]:
        told: dict[str, Any] = {"versions": versions(self.device)}
        for model in ("resnet", "bert"):
            for name, part in (("bare", self.bare), ("backend", self.backend), ("same", self.same)):
                told.setdefault(name, {})[model] = guarded(partial(part, model))
        told["cannot_be_captured"] = guarded(self.cannot_be_captured)
        return told

    def bare(self, model: str) -> dict[str, Any]:
        import torch

        module, found = load_models.module(self.folder, model, self.device), {}
        with torch.inference_mode():
            for rows in (1, 8, 32):
                x = torch.from_numpy(load_models.rows_of(model, rows, self.small))
                loops = {"eager": lambda x=x: module(x.to(self.device)).float().cpu()}
                if self.device == "cuda":
                    loops |= pinned_loops(module, x)
                found[rows] = {name: round(rows * self.rate(loop), 1) for name, loop in loops.items()}
                found[rows].setdefault("eager_pinned", found[rows]["eager"])
                found[rows].setdefault("graph", found[rows]["eager"])
        return found

    def backend(self, model: str) -> dict[str, Any]:
        """`execute` by one thread and by two, each with an instance of its own; requests of 1, 8 and 32 rows."""
        found: dict[str, Any] = {}
        for graphs in (True, False):
            started = perf_counter()
            one = self.load(model, graphs)
            two = one.clone()
            for instance in (one, two):
                instance.execute(self.asked(model, 1)[:1])
            told = found["graphs" if graphs else "eager"] = {"load_and_capture_s": round(perf_counter() - started, 2)}
            told["captured"] = 0 if one._graphs is None else len(one._graphs)
            for rows in (1, 8, 32):
                batch = self.asked(model, rows)
                told[f"by {rows}"] = round(32 * self.rate(partial(one.execute, batch)), 1)
                told[f"by {rows}, two threads"] = round(32 * self.rate_of_two(one, two, batch), 1)
            if self.device == "cuda":
                told["phases_ms"] = phases(one, self.asked(model, 1))
            for instance in (one, two):
                instance.close()
        return found

    def same(self, model: str) -> dict[str, Any]:
        """The largest difference between graph and eager, as a share of the largest value."""
        graphs, eager = self.load(model, True), self.load(model, False)
        found = {}
        for rows in (1, 3, 8, 20, 32):
            x = {"x": tensor(load_models.rows_of(model, rows, self.small, seed=rows))}
            a, b = graphs.run(x)["y"].array, eager.run(x)["y"].array
            found[rows] = float(np.abs(a - b).max() / np.abs(b).max())
        parts = [InferRequest("m", {"x": tensor(load_models.rows_of(model, 1, self.small, seed=n))}) for n in range(20)]
        answers = [np.array(answer["y"].array) for answer in graphs.execute(parts)]
        exact = [eager.run(part.inputs)["y"].array for part in parts]
        found["20 requests"] = float(
            np.abs(np.concatenate(answers) - np.concatenate(exact)).max() / np.abs(exact).max()
        )
        graphs.close()
        eager.close()
        return found

    def cannot_be_captured(self) -> dict[str, Any]:
        """A module that waits for the GPU: said once, answered eagerly, and torch's allocator is as it was."""
        import torch
        from safetensors.torch import save_file

        folder = self.folder / "counter"
        folder.mkdir()
        (folder / "model.py").write_text(COUNTER)
        save_file({"one": torch.ones(1)}, folder / "model.safetensors")
        instance = self.load_from(folder, True)
        x = np.ones((2, 4), np.float32)
        answers = [bool((instance.run({"x": tensor(x)})["y"].array == x).all()) for _ in range(3)]
        found: dict[str, Any] = {"right": answers, "graphs": 0 if instance._graphs is None else len(instance._graphs)}
        found["empty_cache"] = guarded(lambda: torch.cuda.empty_cache() or "works")
        found["random"] = guarded(lambda: float(torch.rand(4, device=self.device).sum()) >= 0)
        found["others"] = guarded(lambda: self.same("bert")[8])
        return found

    def load(self, model: str, graphs: bool) -> Any:
        return self.load_from(self.folder / "weights" / model, graphs)

    def load_from(self, folder: Path, graphs: bool) -> Any:
        text = "\n".join(load_models.settings(load_models.Way("m", 1, graphs)))
        config = config_from_pbtxt(f'name: "m"\n{text}', "config.pbtxt")
        return torch_backend.load(LoadSpec(config, 1, folder / "model.safetensors", folder, Device(self.device)))

    def asked(self, model: str, rows: int) -> list[InferRequest]:
        each = [tensor(load_models.rows_of(model, rows, self.small, seed=n)) for n in range(32 // rows)]
        return [InferRequest("m", {"x": x}) for x in each]

    def rate(self, loop: Callable[[], Any]) -> float:
        """Turns a second, after some that do not count."""
        begin = perf_counter() + self.seconds / 4
        while perf_counter() < begin:
            loop()
        turns, began = 0, perf_counter()
        while (now := perf_counter()) < began + self.seconds:
            loop()
            turns += 1
        return turns / (now - began)

    def rate_of_two(self, one: Any, two: Any, batch: list[InferRequest]) -> float:
        rates: list[float] = []
        each = [
            threading.Thread(target=lambda i=instance: rates.append(self.rate(partial(i.execute, batch))))
            for instance in (one, two)
        ]
        for thread in each:
            thread.start()
        for thread in each:
            thread.join()
        return sum(rates)


def pinned_loops(module: Any, x: Any) -> dict[str, Callable[[], Any]]:
    import torch

    pinned, static = x.pin_memory(), x.cuda()
    out = torch.empty(module(static).shape, pin_memory=True)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        for _ in range(3):
            module(static).float()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        result = module(static).float()

    def eager() -> None:
        out.copy_(module(pinned.to("cuda", non_blocking=True)).float(), non_blocking=True)
        torch.cuda.current_stream().synchronize()

    def replay() -> None:
        static.copy_(pinned, non_blocking=True)
        graph.replay()
        out.copy_(result, non_blocking=True)
        torch.cuda.current_stream().synchronize()

    return {"eager_pinned": eager, "graph": replay}


def phases(instance: Any, batch: list[InferRequest], turns: int = 30) -> dict[str, float]:
    """Where the time of one batch goes, at its middle."""
    taken: dict[str, list[float]] = {"merge": [], "run": []}
    for _ in range(turns):
        began = perf_counter()
        merged = instance._staging.merge(batch, len(batch))
        middle = perf_counter()
        instance.run(merged)
        taken["merge"].append(middle - began)
        taken["run"].append(perf_counter() - middle)
    return {name: round(sorted(times)[turns // 2] * 1e3, 3) for name, times in taken.items()}


def versions(device: str) -> dict[str, Any]:
    from importlib.metadata import distributions

    import torch

    wanted = ("torch", "torchvision", "uvloop", "msgspec", "numpy")
    found: dict[str, Any] = {one.name: one.version for one in distributions() if one.name in wanted}
    found["python"] = sys.version.split()[0]
    found["gpu"] = torch.cuda.get_device_name() if device == "cuda" else None
    return found


def guarded(part: Callable[[], Any]) -> Any:
    try:
        return part()
    except Exception:
        return {"failed": traceback.format_exc()[-2000:]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--seconds", type=float, default=0.5)
    print(json.dumps(Alone(parser.parse_args()).parts(), indent=1))
