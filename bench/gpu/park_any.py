"""Parking of a server without our code: by the driver alone, step by step and by size, and through the platform.

    PYTHONPATH=platform:predictor:bench/gpu python bench/gpu/park_any.py --output bench/results/park-any.json

Needs root or CAP_SYS_PTRACE, a driver with CUDA 12.8, and torch with CUDA. `plain_server.py` is what is parked. The
document is written after each part; `failed` is in the place of a part that failed.
"""

import argparse
import asyncio
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any
from urllib.request import Request, urlopen

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "platform"), str(ROOT / "predictor")]

from machine import machine  # noqa: E402
from parking import _read  # noqa: E402
from serve import _port, _status  # noqa: E402
from tests.embedded import Platform  # noqa: E402
from tests.ports import free_port  # noqa: E402
from torch_backend import WIDTH, timed  # noqa: E402

from pilotlight.targets.local.supervisor.gpus import find_devices  # noqa: E402
from pilotlight.targets.local.supervisor.parking.checkpoint_process import CheckpointProcess  # noqa: E402
from pilotlight.targets.local.supervisor.process_inspection import process_tree  # noqa: E402

SERVER = Path(__file__).with_name("plain_server.py")
BODY = {"model": "plain", "prompt": "One, two, three, four,", "max_tokens": 8}
THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")
COLLAPSE, PROCESS_MADVISE = 25, 440  # MADV_COLLAPSE, and the number of the system call
ALONE = """
import json, sys, time
began = time.perf_counter()
from pilotlight.targets.local.supervisor.parking import cuda_checkpoint as c
driver = c.Driver(); driver.initialize()
ready = time.perf_counter()
seconds = getattr(c, sys.argv[1] + "_all")(driver, [int(sys.argv[2])])
print(json.dumps({"initialize": ready - began, **seconds, "total": time.perf_counter() - began}))
"""
Part = Callable[[], Coroutine[Any, Any, Any]]


def ask(url: str, body: Any = BODY) -> tuple[float, str]:
    """Return the seconds to the response, and what it has computed."""
    began = time.perf_counter()
    with urlopen(Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"}), timeout=120) as reply:
        text = json.loads(reply.read())["choices"][0]["text"]
    return time.perf_counter() - began, text


@contextmanager
def server(gigabytes: float, env: Mapping[str, str] = MappingProxyType({})) -> Iterator[tuple[int, str]]:
    """Run the plain server; yield its pid and URL."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/v1/completions"
    began = time.perf_counter()
    command = [sys.executable, str(SERVER), "--gigabytes", str(gigabytes), "--port", str(port)]
    process = subprocess.Popen(command, env={**os.environ, **env})
    try:
        while True:
            with suppress(OSError):
                ask(url)
                break
            if process.poll() is not None or time.perf_counter() - began > 90:
                raise RuntimeError(f"the server of {gigabytes} GB does not start")
            time.sleep(0.05)
        print(f"{gigabytes} GB: up after {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)
        yield process.pid, url
    finally:
        process.kill()
        process.wait()


def host_memory(pid: int) -> dict[str, int]:
    """Bytes of host memory of a process, by kind."""
    wanted = ("Rss", "Anonymous", "AnonHugePages", "ShmemPmdMapped", "Locked")
    rows = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines())
    return {row[0].rstrip(":"): int(row[1]) << 10 for row in rows if row[0].rstrip(":") in wanted}


def largest_mapping(pid: int) -> str:
    """The line of the largest mapping that is in memory: where the driver keeps what it has taken."""
    size, line, best = 0, "", (0, "")
    for row in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if row.startswith("Rss:"):
            size = int(row.split()[1])
            best = max(best, (size, line))
        elif "-" in row.partition(" ")[0]:
            line = row
    return f"{best[1]} Rss {best[0]} kB"


def used() -> int:
    return sum(device.used_bytes for device in find_devices())


async def split(
    driver: CheckpointProcess,
    gigabytes: float,
    times: int = 3,
    collapse: bool = False,
    env: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Steps of a park and a wake, and what the server answers after each."""
    with server(gigabytes, env) as (pid, url):
        _, before = await asyncio.to_thread(ask, url)
        rounds, row = [], {"gigabytes": gigabytes, "gpu_bytes": used(), "host_awake": host_memory(pid)}
        for number in range(times):
            pids = list(process_tree(pid))
            parked = await driver.call("checkpoint", pids)
            if number == 0:
                row |= {"gpu_bytes_parked": used(), "host_parked": host_memory(pid), "largest": largest_mapping(pid)}
            more = {"collapse": collapse_pages(pid)} if collapse else {}
            woken = await driver.call("restore", pids)
            seconds, answer = await asyncio.to_thread(ask, url)
            rounds.append({"park": parked, "wake": woken, **more, "answer": seconds, "same": answer == before})
        return {**row, "awake_answer": (await asyncio.to_thread(ask, url))[0], "rounds": rounds}


def collapse_pages(pid: int) -> dict[str, Any]:
    """Make huge pages of the anonymous memory of another process (MADV_COLLAPSE, Linux 6.1)."""
    ranges = []
    for row in Path(f"/proc/{pid}/maps").read_text().splitlines():
        words = row.split()
        start, end = (int(word, 16) for word in words[0].split("-"))
        if end - start >= 64 << 20 and len(words) < 6 and words[1].startswith("rw"):
            ranges.append((start, end - start))

    class Vector(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]

    failed: list[str] = []
    libc, fd, began, advised = ctypes.CDLL(None, use_errno=True), os.pidfd_open(pid), time.perf_counter(), 0
    for start, size in ranges:
        got = libc.syscall(PROCESS_MADVISE, fd, ctypes.byref(Vector(start, size)), 1, COLLAPSE, 0)
        advised += max(0, got)
        if got < 0:
            failed.append(f"{size >> 20} MiB: {os.strerror(ctypes.get_errno())}")
    os.close(fd)
    return {"seconds": time.perf_counter() - began, "bytes": advised, "failed": failed, "host": host_memory(pid)}


async def alone(gigabytes: float) -> dict[str, Any]:
    """The same without a process that keeps CUDA initialised: a new one for each call."""
    rounds = []
    with server(gigabytes) as (pid, url):
        for _ in range(2):
            seconds = {}
            for action in ("checkpoint", "restore"):
                command = [sys.executable, "-c", ALONE, action, str(pid)]
                done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)
                seconds[action] = json.loads(done.stdout) if done.returncode == 0 else done.stderr[-300:]
            rounds.append(seconds)
        await asyncio.to_thread(ask, url)
    return {"gigabytes": gigabytes, "rounds": rounds}


async def huge_pages(driver: CheckpointProcess, gigabytes: float) -> dict[str, Any]:
    """The split under the other setting of transparent huge pages."""
    before = thp().partition("[")[2].partition("]")[0]
    set_thp("never" if before == "always" else "always")
    try:
        found = {thp(): await split(driver, gigabytes, times=2)}
    finally:
        set_thp(before)
    return found


def thp() -> str:
    return THP.read_text().strip() if THP.exists() else ""


def set_thp(setting: str) -> None:
    THP.write_text(setting)


@contextmanager
def predictor(gigabytes: float) -> Iterator[tuple[int, str]]:
    """Run our predictor with a model of this size; yield its pid and URL."""
    flags = ("--device", "cuda", "--http-port", "0", "--metrics-port", "-1", "--log-format", "json")
    with tempfile.TemporaryDirectory() as folder:
        make = [sys.executable, str(Path(__file__).with_name("parking.py")), "--make", folder]
        subprocess.run([*make, "--gigabytes", str(gigabytes)], check=True, stdout=sys.stderr)
        command = [sys.executable, "-m", "pilotlight_predictor", "--model-path", f"{folder}/large", "--model-name", "m"]
        with subprocess.Popen([*command, *flags, "--park-memory", "50%"], stderr=subprocess.PIPE, text=True) as server:
            try:
                url = f"http://127.0.0.1:{_port(server.stderr or ())}"
                while _status(f"{url}/v2/health/ready") != 200:
                    time.sleep(0.05)
                yield server.pid, url
            finally:
                server.kill()


async def own(driver: CheckpointProcess, gigabytes: float) -> dict[str, Any]:
    """Our predictor: its weights leave by themselves, then the driver takes what is left of it on the GPU."""
    with predictor(gigabytes) as (pid, url):
        return await _own(driver, pid, url)


async def _own(driver: CheckpointProcess, pid: int, url: str) -> dict[str, Any]:
    x = {"inputs": [{"name": "x", "shape": [1, WIDTH], "datatype": "FP32", "data": [0.5] * WIDTH}]}
    infer = Request(f"{url}/v2/models/m/infer", json.dumps(x).encode())
    before, free, rounds = _read(infer), {"awake": used()}, []
    for _ in range(3):
        times = {"park": timed(lambda: _read(Request(f"{url}/v2/repository/models/m/park", b"")))[0]}
        free["weights left"] = used()
        times["context"] = (await driver.call("checkpoint", list(process_tree(pid))))["total"]
        free["context left"] = used()
        times["restore"] = (await driver.call("restore", list(process_tree(pid))))["total"]
        times["answer"], answer = timed(lambda: _read(infer))
        rounds.append({**times, "same": answer == before})
    return {"gpu_bytes": free, "rounds": rounds}


def document(name: str, memory: str) -> str:
    return f"""
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: {name}
  annotations:
    pilotlight.dev/park: "true"
    autoscaling.knative.dev/window: 6s
spec:
  predictor:
    minReplicas: 0
    maxReplicas: 1
    containers:
    - name: kserve-container
      image: ggml-org/llama.cpp:server
      command: [llama-server]
      args: []
      ports: [{{containerPort: 8080}}]
      resources: {{limits: {{nvidia.com/gpu: 1, memory: {memory}}}}}
      readinessProbe: {{httpGet: {{path: /health, port: 8080}}, periodSeconds: 1}}
"""


async def platform(gigabytes: float, times: int = 2) -> dict[str, Any]:
    """A client's view: the seconds of a request to a parked service, of one that is awake, and of a cold start."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "bin/llama-server"  # in the place of an engine's program
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {SERVER} --gigabytes {gigabytes} "$@"\n')
        program.chmod(0o755)
        path = f"{program.parent}:{os.environ['PATH']}"
        with Platform(Path(folder) / "home", {"PILOTLIGHT_ENGINE_PATH": str(program.parent), "PATH": path}) as running:
            return await asyncio.to_thread(_parked_and_woken, running, times)


def _parked_and_woken(running: Platform, times: int) -> dict[str, Any]:
    began = time.perf_counter()
    running.deploy(document("plain", "64Gi"))
    running.wait_phase("Ready", name="plain", seconds=90)
    found: dict[str, Any] = {"cold_start_s": time.perf_counter() - began, "parked_s": [], "same": []}

    def timed() -> tuple[float, str]:
        start = time.perf_counter()
        reply = running.ask("/plain/v1/completions", BODY)
        return time.perf_counter() - start, reply.json()["choices"][0]["text"]

    first = timed()
    found["awake_s"] = median(timed()[0] for _ in range(5))
    for _ in range(times):
        running.wait(lambda: _is_parked(running), "the replica to be parked", 60)
        found["gpu_bytes_parked"] = used()
        seconds, answer = timed()
        found["parked_s"].append(seconds)
        found["same"].append(answer == first[1])
    metrics = urlopen(f"http://127.0.0.1:{running.address.port}/metrics", timeout=10).read().decode().splitlines()
    found["metrics"] = [
        line for line in metrics if line.startswith(("pilotlight_replica_wake", "pilotlight_replica_parked"))
    ]
    found["events"] = running.events()
    return found


def _is_parked(running: Platform) -> bool:
    replicas = running.status("plain").revisions[0].replicas
    if not replicas:
        raise RuntimeError(f"it was stopped: {running.events()[-3:]}")
    return replicas[-1].state == "parked"


def write(output: Path, found: dict[str, Any]) -> None:
    output.write_text(json.dumps(found, indent=2))


async def measure(output: Path, names: Sequence[str]) -> None:
    driver = CheckpointProcess()
    parts: dict[str, Part] = {
        "0.5": lambda: split(driver, 0.5),
        "8": lambda: split(driver, 8.0, times=4),
        "platform": lambda: platform(8.0),
        "own": lambda: own(driver, 2.4),
        "huge_pages": lambda: huge_pages(driver, 8.0),
        "malloc_huge_pages": lambda: split(driver, 8.0, times=2, env={"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}),
        "collapsed": lambda: split(driver, 8.0, times=1, collapse=True),
        "alone": lambda: alone(8.0),
        "32": lambda: split(driver, 32.0, times=2),
    }
    found: dict[str, Any] = {"machine": machine(), "thp": thp()}
    for name in names or parts:
        began = time.perf_counter()
        try:
            found[name] = await parts[name]()
        except Exception as error:  # the other parts are worth their figures all the same
            found[name] = {"failed": f"{type(error).__name__}: {error}"}
        print(f"{name}: {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)
        write(output, found)
    await driver.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("parts", nargs="*", help="those to measure; default: all")
    options = parser.parse_args()
    asyncio.run(measure(options.output, options.parts))


if __name__ == "__main__":
    main()
