"""GPU admission: many models on a GPU that holds three, asked by a skewed trace; what each request waits and why.

    PYTHONPATH=platform:predictor:bench/gpu python bench/gpu/admission.py > bench/results/admission.json

Needs torch with CUDA and what the platform itself needs. All models serve the same bf16 weights and park. A ballast
takes the memory of the GPU that would let a fourth one in. Prints one JSON document; `--nothing-parks` stops models
instead, so that each swap is a cold start. All parked models together get a quarter of the host's memory; beyond it
they are stopped, so with larger weights the figures have both. After `--seconds` no more requests are sent; what was
measured until then is printed, with the error of a run that failed.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from statistics import median, quantiles
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "platform"), str(ROOT / "predictor")]

from tests.embedded import Platform  # noqa: E402
from torch_backend import WIDTH  # noqa: E402

from pilotlight.targets.local.supervisor.gpus import find_devices  # noqa: E402

GIB = 1 << 30
FIT = 3
CONTEXT = GIB  # of CUDA and torch, in each process
PARKED_CONTEXT = 600 << 20  # what stays of it in a parked one
X = {"inputs": [{"name": "x", "shape": [1, WIDTH], "datatype": "FP32", "data": [0.5] * WIDTH}]}
BALLAST = """
import sys, torch
held = torch.empty(int(sys.argv[1]), dtype=torch.uint8, device="cuda")
print("held", flush=True)
sys.stdin.read()
"""


def document(name: str, model: Path, memory: int, park: bool) -> str:
    return f"""
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: {name}
  annotations:
    autoscaling.knative.dev/window: 1h
    pilotlight.dev/gpu-memory: "{memory}"
    pilotlight.dev/park: "{str(park).lower()}"
spec:
  predictor:
    minReplicas: 0
    maxReplicas: 1
    model:
      modelFormat: {{name: pytorch}}
      protocolVersion: v2
      storageUri: {model.as_uri()}
      resources:
        limits: {{nvidia.com/gpu: "1", memory: 12Gi}}
"""


def summary(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    p99 = quantiles(ordered, n=100)[98] if len(ordered) > 1 else ordered[0]
    return {"requests": len(ordered), "p50_s": median(ordered), "p99_s": p99, "longest_s": ordered[-1]}


def play(platform: Platform, names: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """Zipf over the models by several clients at once; every answer must come."""
    trace = Random(7).choices(names, weights=[1 / (rank + 1) for rank in range(len(names))], k=options.requests)
    begin = time.monotonic()

    def ask(name: str) -> tuple[str, str, float] | None:
        sent = time.monotonic()
        if sent - begin > options.seconds:
            return None
        try:
            status = str(platform.ask(f"/{name}/v2/models/{name}/infer", X, timeout=60).status)
        except OSError as error:
            status = type(error).__name__
        print(f"{sent - begin:.2f} {name} {status} {time.monotonic() - sent:.2f} s", file=sys.stderr, flush=True)
        return name, status, time.monotonic() - sent

    with ThreadPoolExecutor(options.clients) as pool:
        answers = [each for each in pool.map(ask, trace) if each is not None]
    took = time.monotonic() - begin
    by_model = {name: [seconds for each, _, seconds in answers if each == name] for name in names}
    return {
        "seconds": took, "per_second": len(answers) / took, "statuses": Counter(each for _, each, _ in answers),
        "all": summary([seconds for *_, seconds in answers]),
        "by_model": {name: summary(seconds) for name, seconds in by_model.items() if seconds},
    }  # fmt: skip


def learned(platform: Platform) -> dict[str, int]:
    """Bytes of the GPU that are reserved by the services that hold some."""
    rows = [(status.name, row) for status in platform.target.list(None) for row in status.revisions]
    return {name: each.gpu_memory for name, row in rows for each in row.replicas if each.state == "ready"}


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    import torch

    model, names = folder / "large", [f"m{index:02}" for index in range(options.models)]
    need = round((model / "model.safetensors").stat().st_size * 1.1) + CONTEXT
    free = find_devices()[0].memory - find_devices()[0].used_bytes
    contexts = 0 if options.nothing_parks else (options.models - FIT) * PARKED_CONTEXT
    ballast = max(0, free - FIT * need - contexts - CONTEXT)  # its own context too
    pipe = subprocess.PIPE
    held = subprocess.Popen([sys.executable, "-c", BALLAST, str(ballast)], stdin=pipe, stdout=pipe, text=True)
    try:
        assert held.stdout is not None
        held.stdout.readline()
        result: dict[str, Any] = {
            "gpu": torch.cuda.get_device_name(0), "models": options.models, "weights_gb": options.gigabytes,
            "parks": not options.nothing_parks, "declared_bytes": need, "ballast_bytes": ballast,
        }  # fmt: skip
        with Platform(folder / "home", {"PILOTLIGHT_PILOT_LIGHT": "on"}) as platform:
            begin = time.monotonic()
            for name in names:
                platform.deploy(document(name, model, need, not options.nothing_parks))
                print(f"{name} is deployed after {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
            try:
                for name in names:
                    platform.wait_phase("Ready", "Parked", "Standby", name=name, seconds=options.wait)
                result["deployed_s"] = time.monotonic() - begin
                print(f"{len(names)} models deployed in {result['deployed_s']:.0f} s", file=sys.stderr, flush=True)
                before = preemptions(platform)
                result["trace"] = play(platform, names, options)
                result["swaps_per_minute"] = 60 * (preemptions(platform) - before) / result["trace"]["seconds"]
                result["reserved_at_the_end"] = learned(platform)
            except Exception as error:
                result["error"] = repr(error)[-2000:]
            events = platform.events()
            result["events"] = Counter(line.partition(":")[0] for line in events)
            result["failures"] = Counter(line for line in events if line.startswith("Failed")).most_common(3)
            result["last_events"] = [line for line in events if line.startswith(("Preempted", "Admitted"))][-10:]
        return result
    finally:
        held.communicate("")


def preemptions(platform: Platform) -> int:
    return sum(line.startswith("Preempted") for line in platform.events())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=2.4, help="size of each model's bf16 weights")
    parser.add_argument("--models", type=int, default=12)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=600, help="after which no more requests are sent")
    parser.add_argument("--wait", type=float, default=600, metavar="SECONDS", help="for a model to be ready at first")
    parser.add_argument("--nothing-parks", action="store_true", help="models are stopped instead of parked")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make = [sys.executable, str(Path(__file__).with_name("parking.py")), "--make", folder]
        subprocess.run([*make, "--gigabytes", str(options.gigabytes)], check=True, stdout=sys.stderr)
        print(json.dumps(measure(Path(folder), options), indent=2))


if __name__ == "__main__":
    main()
