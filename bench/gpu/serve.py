"""The whole server on a GPU machine: exec → ready by phase, a real answer over HTTP, and what the metrics say.

    PYTHONPATH=platform:predictor python bench/gpu/serve.py MODEL_DIR INPUT WIDTH [REPETITIONS]

MODEL_DIR is served with --model-path on the GPU; INPUT is the name of its FP32 input of shape [1, WIDTH].
"""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any

CALLS = 20


def main(model: str, name: str, width: int, repetitions: int = 3) -> dict[str, Any]:
    runs = [run(model, name, width) for _ in range(repetitions)]
    return {
        "model": Path(model).name,
        "exec_to_ready_s": median(run["ready_s"] for run in runs),
        "exec_to_first_answer_s": median(run["answer_s"] for run in runs),
        "runs": [{key: value for key, value in run.items() if key != "answer"} for run in runs],
    }


def run(model: str, name: str, width: int, flags: Sequence[str] = (), pilot: Path | None = None) -> dict[str, Any]:
    """By exec of a fresh process, or by the pilot light that listens on the socket."""
    words = ["--model-path", model, "--model-name", "m", "--device", "cuda", "--http-port", "0",
             "--metrics-port", "-1", "--log-format", "json", *flags]  # fmt: skip
    reader, writer = os.pipe()
    started = perf_counter()
    if pilot is None:
        pid = subprocess.Popen([sys.executable, "-m", "pilotlight_predictor", *words], stderr=writer).pid
    else:
        pid = forked(pilot, words, writer)
    os.close(writer)
    try:
        with os.fdopen(reader) as lines:
            return _measure(f"http://127.0.0.1:{_port(lines)}", name, width, started)
    finally:
        os.kill(pid, signal.SIGTERM)
        _await_end(pid)


def forked(pilot: Path, words: Sequence[str], log: int) -> int:
    errand = {"argv": list(words), "env": dict(os.environ), "cwd": os.getcwd(), "exit_file": "/dev/null"}
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(pilot))
        socket.send_fds(connection, [json.dumps(errand).encode() + b"\n"], [log])
        told, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, 4)
    for descriptor in descriptors:
        os.close(descriptor)
    return int(json.loads(told)["pid"])


def _await_end(pid: int) -> None:
    """Of a child, or of the pilot light's, which reaps it."""
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        while Path(f"/proc/{pid}").exists():
            sleep(0.05)


def _port(lines: Iterable[str]) -> int:
    for line in lines:
        document = json.loads(line) if line.startswith("{") else {}
        if document.get("event") == "listening":
            return int(document["http_port"])
    raise RuntimeError("the server ended before it listened")


def _measure(url: str, name: str, width: int, started: float) -> dict[str, Any]:
    while _status(f"{url}/v2/health/ready") != 200:
        if perf_counter() - started > 120:
            raise RuntimeError(f"not ready: {_get(url + '/status').decode()}")
        sleep(0.002)
    ready = perf_counter() - started
    tensor = {"name": name, "shape": [1, width], "datatype": "FP32", "data": [0.5] * width}
    request = urllib.request.Request(f"{url}/v2/models/m/infer", json.dumps({"inputs": [tensor]}).encode())
    outputs = json.loads(urllib.request.urlopen(request, timeout=60).read())["outputs"]
    answered = perf_counter() - started
    again = perf_counter()
    for _ in range(CALLS):
        urllib.request.urlopen(request, timeout=60).read()
    call_ms = (perf_counter() - again) * 1000 / CALLS
    sleep(1.5)  # the GPU is sampled each second
    metrics = _get(f"{url}/metrics").decode().splitlines()
    return {
        "ready_s": round(ready, 3),
        "answer_s": round(answered, 3),
        "call_ms": round(call_ms, 2),
        "answer": outputs[0]["data"],
        "phases": json.loads(_get(f"{url}/status"))["phases"],
        "output_shape": outputs[0]["shape"],
        "gpu_metrics": [line for line in metrics if line.startswith(("nv_gpu", "nv_energy"))],
    }


def _status(url: str) -> int:
    try:
        return int(urllib.request.urlopen(url, timeout=5).status)
    except urllib.error.HTTPError as error:
        return error.code


def _get(url: str) -> bytes:
    return bytes(urllib.request.urlopen(url, timeout=10).read())


if __name__ == "__main__":
    model, name, width, *rest = sys.argv[1:]
    print(json.dumps(main(model, name, int(width), *map(int, rest)), indent=2))
