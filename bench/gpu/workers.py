"""Requests a second with 1, 2, 4 and 8 workers on a machine with many cores: each count on as many cores of its own.

    PYTHONPATH=platform:predictor python bench/gpu/workers.py MODEL.onnx INPUT WIDTH > workers.json

Needs wrk and twice as many cores as the largest count: the load has the other half for itself. The counts take turns,
so that a machine which changes its pace meanwhile does so for all of them; told are medians. `load_cpu` is the share of
its cores that the load used: near 1 it is wrk that could not do more.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import monotonic, sleep
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

COUNTS = (1, 2, 4, 8)
ROUNDS = 3
SECONDS = 6
SCRIPT = Path(__file__).resolve().parent.parent / "request.lua"


def main(model: str, name: str, width: int) -> dict[str, Any]:
    cores = sorted(os.sched_getaffinity(0))
    counts = [count for count in COUNTS if 2 * count <= len(cores)]
    told: dict[str, Any] = {"cores": len(cores)}
    with tempfile.TemporaryDirectory() as scratch:
        body = Path(scratch) / "body.json"
        tensor = {"name": name, "shape": [1, width], "datatype": "FP32", "data": [0.5] * width}
        body.write_text(json.dumps({"inputs": [tensor]}))
        others = cores[len(cores) // 2 :]
        rounds = [{count: served(model, body, cores[:count], others) for count in counts} for _ in range(ROUNDS)]
    told["rounds"] = rounds
    told["rps"] = {count: median(each[count]["rps"] for each in rounds) for count in counts}
    told["factors"] = {count: round(told["rps"][count] / told["rps"][1], 2) for count in counts}
    return told


def served(model: str, body: Path, ours: list[int], others: list[int]) -> dict[str, Any]:
    command = [sys.executable, "-m", "pilotlight_predictor", "--model-path", model, "--model-name", "m",
               "--http-port", "18123", "--metrics-port", "-1", "--device", "cpu", "--threads", "1",
               "--workers", str(len(ours))]  # fmt: skip
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL, preexec_fn=lambda: os.sched_setaffinity(0, ours))
    try:
        await_ready("http://127.0.0.1:18123/v2/health/ready")
        ask(body, 2, others, len(ours))
        return ask(body, SECONDS, others, len(ours))
    finally:
        server.terminate()
        server.wait(30)


def await_ready(url: str) -> None:
    end = monotonic() + 60
    while monotonic() < end:
        try:
            with urlopen(url, timeout=1) as answer:
                if answer.status == 200:
                    sleep(2.5)  # what the start put off is imported
                    return
        except (URLError, OSError):
            sleep(0.05)
    raise SystemExit("the server was not ready within a minute")


def ask(body: Path, seconds: int, cores: list[int], workers: int) -> dict[str, Any]:
    load = ["wrk", f"-t{len(cores)}", f"-c{32 * workers}", f"-d{seconds}s", "-s", str(SCRIPT),
            "http://127.0.0.1:18123/v2/models/m/infer", "--", str(body), "Content-Type: application/json"]  # fmt: skip
    used, began = resource.getrusage(resource.RUSAGE_CHILDREN), monotonic()
    done = subprocess.run(
        load, capture_output=True, text=True, check=True, preexec_fn=lambda: os.sched_setaffinity(0, cores)
    )
    spent, took = resource.getrusage(resource.RUSAGE_CHILDREN), monotonic() - began
    busy = spent.ru_utime + spent.ru_stime - used.ru_utime - used.ru_stime
    result = json.loads(
        next(line for line in done.stdout.splitlines() if line.startswith("RESULT ")).removeprefix("RESULT ")
    )
    errors = sum(result[kind] for kind in ("status", "connect", "read", "write", "timeout"))
    return {"rps": round(result["requests"] * 1e6 / result["duration_us"]), "p99_ms": result["p99_us"] / 1e3,
            "errors": errors, "load_cpu": round(busy / took / len(cores), 2)}  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], int(sys.argv[3])), indent=2))
