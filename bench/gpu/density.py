"""Far more models than fit on a GPU, asked by a Zipf trace: parked ones beside stop/start and one server that loads.

    PYTHONPATH=platform:predictor:bench/gpu python bench/gpu/density.py --output bench/results/density.json

Needs torch with CUDA and what the platform itself needs; host memory for the weights of all models. A ballast takes
the GPU memory beyond `--allowed`. All models serve the same bf16 weights, and all parts replay the same arrivals:

- `ours`: a process for each model, parked in host memory while idle. First with all CUDA contexts within the allowed
  memory, then with those of parked processes beside it, and at higher rates;
- `stopstart`: a process for each model, stopped instead of parked and started by exec, by the same admission;
- `oneserver`: one process, which loads and unloads models on demand (Triton's explicit model control), the least
  recently used first.

The document is written after each part; `failed` is in the place of a part that failed. `--device cpu` tries all of it
with models that sleep for the time of a copy, on a stand-in for NVML.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from statistics import mean
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "platform"), str(ROOT / "predictor"), str(Path(__file__).parent)]

from guarded import guarded  # noqa: E402
from machine import machine  # noqa: E402
from serve import _port, _status  # noqa: E402
from tests.e2e.embedded.fake_gpu import write_nvml  # noqa: E402
from tests.embedded import Platform  # noqa: E402
from zipf_trace import Answer, LoadedModels, replay, summary, zipf  # noqa: E402

WIDTH = 4096
CONTEXT = 1 << 30  # of CUDA and torch in a process, with what a request needs; declared until it is measured
PARKED_PERCENT = "85"  # of the host memory, instead of a quarter
HEADER = "x-pilotlight-cold-start"
BALLAST = """
import sys, torch
for line in sys.stdin:
    held = None
    torch.cuda.empty_cache()
    held = torch.empty(max(1, int(line)), dtype=torch.uint8, device="cuda")
    print(len(held), flush=True)
"""
STAND_IN = """
import os, time
from pathlib import Path

INPUTS = {{"x": ("FP32", [-1, {width}])}}
OUTPUTS = {{"y": ("FP32", [-1, {width}])}}
FILE = Path({folder!r}, str(os.getpid()))


class Model:
    def initialize(self, args):
        time.sleep({load_s})
        self.count(1)

    def execute(self, inputs):
        time.sleep(0.005)
        return {{"y": inputs["x"] * 2}}

    def finalize(self):
        self.count(-1)

    def park(self):
        self.count(-1)

    def wake(self):
        time.sleep({wake_s})
        self.count(1)

    def count(self, change):
        held = int(FILE.read_text()) if FILE.exists() else 0
        FILE.write_text(str(max(held + change * {size}, 0)))
"""


def log(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


class Bench:
    """The model, the memory of the GPU, and what the parts share."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.options, self.cuda = folder, options, options.device == "cuda"
        self.model, self.nvml = folder / "large", folder / "nvml"
        self.names = [f"m{index:02}" for index in range(options.models)]
        self.body = json.dumps(
            {"inputs": [{"name": "x", "shape": [1, WIDTH], "datatype": "FP32", "data": [0.5] * WIDTH}]}
        )
        self.env: dict[str, str] = {}
        self._before = 0  # bytes of the GPU that were in use at first
        self._ballast: subprocess.Popen[str] | None = None
        self._held = self._own = 0  # by the ballast, and by its context
        if self.cuda:
            make = [sys.executable, str(Path(__file__).with_name("parking.py")), "--make", str(folder)]
            subprocess.run([*make, "--gigabytes", str(options.gigabytes)], check=True, stdout=sys.stderr)
            self.size = (self.model / "model.safetensors").stat().st_size
        else:
            self.size = round(options.gigabytes * 1e9)
            self.env = write_nvml(self.nvml, options.allowed_bytes * 8)
            for name in ("PILOTLIGHT_GPU_RESIDENCE", "PILOTLIGHT_GPU_PATIENCE"):
                self.env.pop(name)
            self.model.mkdir()
            source = STAND_IN.format(
                width=WIDTH, folder=str(self.nvml / "gpu"), load_s=self.size / 4e9, wake_s=self.size / 50e9,
                size=self.size,
            )  # fmt: skip
            (self.model / "model.py").write_text(source)
            sys.path.insert(0, str(self.nvml))
        time.sleep(2)  # the one who wrote the model has left the GPU
        self._before = self.memory()[0]

    @property
    def need(self) -> int:
        """Bytes that a model declares."""
        return round(self.size * 1.02) + (CONTEXT if self.cuda else 0)

    @property
    def fit(self) -> int:
        """Models of a process each that the allowed memory holds."""
        return max(1, self.options.allowed_bytes // self.need)

    def memory(self) -> tuple[int, int]:
        """Bytes of the GPU in use, and in total."""
        import pynvml

        pynvml.nvmlInit()
        try:
            found = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0))
            return int(found.used), int(found.total)
        finally:
            pynvml.nvmlShutdown()

    def allow(self, size: int | None) -> int:
        """Take all memory of the GPU but `size` bytes, whatever uses them now; None: take nothing. Return what is held.

        The memory that others use counts within `size`.
        """
        if self._ballast is None and self.cuda:
            pipe = subprocess.PIPE
            words = [sys.executable, "-u", "-c", BALLAST]
            self._ballast = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True)
            self._hold(0)
            self._own = max(0, self.memory()[0] - self._before)
        self._hold(0 if size is None else max(0, self.memory()[1] - size - self._own))
        return self._held

    def _hold(self, size: int) -> None:
        self._held = size
        if not self.cuda:
            (self.nvml / "gpu" / str(os.getpid())).write_text(str(size))
            return
        assert self._ballast is not None
        assert self._ballast.stdin is not None
        assert self._ballast.stdout is not None
        print(size, file=self._ballast.stdin, flush=True)
        if not self._ballast.stdout.readline():
            raise RuntimeError(f"the ballast of {size} bytes finds no memory")

    @contextmanager
    def memory_limit(self) -> Iterator[None]:
        """Start the ballast, which holds nothing yet, and end it."""
        until = time.monotonic() + 15
        while self.memory()[0] > self._before + CONTEXT // 2 and time.monotonic() < until:
            time.sleep(0.1)  # processes of the part before are ending
        try:
            self.allow(None)
            yield
        finally:
            if self._ballast is None:
                self._hold(0)
            else:
                self._ballast.kill()
                self._ballast.wait()
                self._ballast = None

    def ask(self, port: int, path: str) -> tuple[str, bool]:
        """Return the status and whether the request waited for a model, once the first byte is there."""
        with closing(HTTPConnection("127.0.0.1", port, timeout=self.options.timeout)) as connection:
            try:
                connection.request("POST", path, self.body)
                reply = connection.getresponse()
                found = str(reply.status), reply.getheader(HEADER) is not None
                if reply.status != 200:
                    log(f"{path}: {reply.status} {reply.read(300)!r}")
            except HTTPException as error:
                return type(error).__name__, True
            return found

    def trace(
        self, ask: Callable[[str], tuple[str, bool]], seconds: float, rate: float = 0.0, models: int = 0
    ) -> dict[str, Any]:
        """Replay arrivals; `models`: over the first ones alone, which fit."""
        names = self.names[: models or None]
        arrivals = zipf(names, rate or self.options.rate, seconds, self.options.seed)
        log(f"{len(arrivals)} requests in {seconds:g} s to {len(names)} models")

        def report(answer: Answer) -> None:
            if answer.first_byte_s > 1 or answer.status != "200":
                at, name = answer.arrival
                log(f"{at:.2f} {name} {answer.status} after {answer.first_byte_s:.2f} s")

        with Sampler(self) as sampler:
            answers = replay(arrivals, ask, report)
        found: dict[str, Any] = {"rate": rate or self.options.rate, "models": len(names), **summary(answers)}
        found["statuses"] = Counter(each.status for each in answers)
        found |= sampler.found(found.get("seconds", 0.0))
        log(f"first byte {found.get('first_byte_s')}, waited {found.get('share_waited')}")
        return found


class Sampler(threading.Thread):
    """Share of the time in which kernels run on the GPU, and its memory in use, as NVML tells them."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(daemon=True)
        self._bench, self._ending = bench, threading.Event()
        self._busy: list[int] = []
        self._used: list[int] = []

    def run(self) -> None:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        while not self._ending.wait(0.1):
            self._used.append(int(pynvml.nvmlDeviceGetMemoryInfo(handle).used) - self._bench._held)
            with suppress(Exception):  # the stand-in for NVML has no utilization
                self._busy.append(int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu))

    def __enter__(self) -> "Sampler":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self.join()

    def found(self, seconds: float) -> dict[str, Any]:
        found: dict[str, Any] = {"gpu_bytes_most": max(self._used, default=0)}
        if self._busy:
            share = mean(self._busy) / 100
            found |= {"gpu_busy_share": share, "gpu_busy_s": share * seconds}
        return found


def document(bench: Bench, name: str, parks: bool) -> str:
    return f"""
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: {name}
  annotations:
    autoscaling.knative.dev/window: {bench.options.window}s
    pilotlight.dev/gpu-memory: "{bench.need}"
    pilotlight.dev/park: "{str(parks).lower()}"
spec:
  predictor:
    minReplicas: 0
    maxReplicas: 1
    model:
      modelFormat: {{name: {"pytorch" if bench.cuda else "python"}}}
      protocolVersion: v2
      storageUri: {bench.model.as_uri()}
      resources:
        limits: {{nvidia.com/gpu: "1", memory: 24Gi}}
"""


class Services:
    """A service for each model on the embedded platform."""

    def __init__(self, bench: Bench, running: Platform, parks: bool) -> None:
        self.bench, self.running, self._parks = bench, running, parks
        self.idle = "Parked" if parks else "Standby"

    def deploy(self) -> dict[str, float]:
        """Deploy all while the GPU holds all of them, ask each, and wait until all have left it."""
        began = time.monotonic()
        for name in self.bench.names:
            self.running.deploy(document(self.bench, name, self._parks))
        found = {"applied_s": time.monotonic() - began}
        log(f"{len(self.bench.names)} services applied")
        with ThreadPoolExecutor(len(self.bench.names)) as pool:
            found["answered"] = sum(pool.map(self.answers, self.bench.names))
        found["all_answered_s"] = time.monotonic() - began
        log(f"{found['answered']} services answer")
        try:
            self.wait_idle(self.bench.options.wait)
        except AssertionError as error:
            log(f"not all services are {self.idle}, but {self.states()}: {str(error)[:500]}")
        found["all_idle_s"] = time.monotonic() - began
        log(f"phases: {self.phases()}")
        return found

    def answers(self, name: str) -> bool:
        """Ask until it does: its route may not be there yet."""
        until = time.monotonic() + self.bench.options.wait
        while (status := self.ask(name)[0]) != "200" and time.monotonic() < until:
            time.sleep(0.2)
        return status == "200"

    def phases(self) -> dict[str, int]:
        return Counter(status.phase for status in self.running.target.list(None))

    def wait_idle(self, seconds: float) -> None:
        """Wait until no replica is on the GPU: one that parks for the first time copies its weights before."""
        self.running.wait(lambda: self.states() <= {"parked", "exited"}, f"all services to be {self.idle}", seconds)

    def states(self) -> set[str]:
        rows = [row for status in self.running.target.list(None) for row in status.revisions]
        return {each.state for row in rows for each in row.replicas}

    def ask(self, name: str) -> tuple[str, bool]:
        return self.bench.ask(self.running.gateway_port, f"/{name}/v2/models/{name}/infer")

    def end(self) -> dict[str, Any]:
        """What the platform says at the end."""
        events = [line for name in self.bench.names for line in self.running.events(("default", name))]
        rows = [row for status in self.running.target.list(None) for row in status.revisions]
        return {
            "events": Counter(line.partition(":")[0] for line in events),
            "warnings": Counter(
                line for line in events if line.startswith(("Failed", "NotParked", "WakeFailed", "Ended", "Context"))
            ).most_common(5),
            "last_events": [line for line in events if line.startswith(("Preempted", "Admitted"))][-12:],
            "reserved_bytes": [each.gpu_memory for row in rows for each in row.replicas if each.state == "ready"],
        }


def ours(bench: Bench, found: dict[str, Any]) -> None:
    options = bench.options
    env = {"PILOTLIGHT_PILOT_LIGHT": "on", "PILOTLIGHT_PARKED_PERCENT": PARKED_PERCENT, **bench.env}
    with bench.memory_limit(), Platform(bench.folder / "ours", env) as running:
        services = Services(bench, running, parks=True)
        try:
            found["setup"] = services.deploy()
            found["gpu_bytes_all_parked"] = bench.memory()[0] - bench._before - bench._own
            found["ballast_bytes"] = bench.allow(bench._before + options.allowed_bytes)
            began = time.monotonic()
            first = [services.ask(name) for name in reversed(bench.names)]
            found["setup"]["each_woken_s"] = time.monotonic() - began
            found["setup"]["each_woken"] = Counter(status for status, _ in first)
            found["trace"] = bench.trace(services.ask, options.seconds)
            found["preempted"] = sum(line.startswith("Preempted") for line in running.events())
            bench.allow(bench._before + options.allowed_bytes + found["gpu_bytes_all_parked"])
            found["contexts_beside"] = bench.trace(services.ask, options.seconds / 4)
            for rate in options.more_rates:
                found[f"contexts_beside_{rate:g}_per_s"] = bench.trace(services.ask, 15.0, rate)
        finally:
            with suppress(Exception):
                found["end"] = services.end()
            keep_logs(bench, "ours")


def stopstart(bench: Bench, found: dict[str, Any]) -> None:
    options = bench.options
    with bench.memory_limit(), Platform(bench.folder / "stopstart", bench.env) as running:
        services = Services(bench, running, parks=False)
        try:
            found["setup"] = services.deploy()
            found["ballast_bytes"] = bench.allow(bench._before + options.allowed_bytes)
            found["trace"] = bench.trace(services.ask, options.seconds)
            fitting(bench, found, services.ask)
        finally:
            with suppress(Exception):
                found["end"] = services.end()
            keep_logs(bench, "stopstart")


def fitting(bench: Bench, found: dict[str, Any], ask: Callable[[str], tuple[str, bool]]) -> None:
    """The same over as many models as fit, once each is there."""
    with ThreadPoolExecutor(bench.fit) as pool:
        list(pool.map(ask, bench.names[: bench.fit]))
    found["fitting"] = bench.trace(ask, bench.options.seconds / 6, models=bench.fit)


def oneserver(bench: Bench, found: dict[str, Any]) -> None:
    repository = bench.folder / "repository"
    for name in bench.names:
        (repository / name / "1").mkdir(parents=True)
        for file in bench.model.iterdir():
            os.link(file, repository / name / "1" / file.name)
    room = max(1, (bench.options.allowed_bytes - (CONTEXT if bench.cuda else 0)) // round(bench.size * 1.02))
    found["models_at_once"] = room
    words = ["--model-repository", str(repository), "--model-control-mode", "explicit", "--log-format", "json",
             "--http-port", "0", "--grpc-port", "-1", "--metrics-port", "-1"]  # fmt: skip
    words += ["--device", bench.options.device]
    began = time.monotonic()
    errors = bench.folder / "oneserver.log"
    with bench.memory_limit(), errors.open("w+") as written:
        found["ballast_bytes"] = bench.allow(bench._before + bench.options.allowed_bytes)
        server = subprocess.Popen([sys.executable, "-m", "pilotlight_predictor", *words], stderr=written)
        try:
            port = listening(server, errors)
            found["ready_s"] = time.monotonic() - began
            _one_server(bench, found, port, room)
        finally:
            server.terminate()
            with suppress(subprocess.TimeoutExpired):
                server.wait(20)
            server.kill()
            keep_logs(bench, "oneserver.log")


def listening(server: "subprocess.Popen[bytes]", errors: Path) -> int:
    until = time.monotonic() + 90
    while time.monotonic() < until and server.poll() is None:
        with suppress(RuntimeError, json.JSONDecodeError):
            port = _port(errors.read_text().splitlines())
            if _status(f"http://127.0.0.1:{port}/v2/health/ready") == 200:
                return port
        time.sleep(0.05)
    raise RuntimeError(f"the server is not ready: {errors.read_text()[-1500:]}")


def _one_server(bench: Bench, found: dict[str, Any], port: int, room: int) -> None:
    took: list[float] = []

    def control(name: str, verb: str) -> None:
        began = time.monotonic()
        with closing(HTTPConnection("127.0.0.1", port, timeout=90)) as connection:
            connection.request("POST", f"/v2/repository/models/{name}/{verb}", "{}")
            reply = connection.getresponse()
            text = reply.read(300)
            if reply.status != 200:
                log(f"{verb} {name}: {reply.status} {text!r}")
                raise ConnectionError(f"{verb}: {reply.status}")
        if verb == "load":
            took.append(time.monotonic() - began)

    loaded = LoadedModels(room, lambda name: control(name, "load"), lambda name: control(name, "unload"))

    def ask(name: str) -> tuple[str, bool]:
        waited = loaded.acquire(name)
        try:
            return bench.ask(port, f"/v2/models/{name}/infer")[0], waited
        finally:
            loaded.release(name)

    for name in reversed(bench.names[: room + 1]):
        ask(name)
    found["trace"] = bench.trace(ask, bench.options.seconds)
    found["load_s"] = {"mean": mean(took), "longest": max(took), "count": len(took)}
    fitting(bench, found, ask)


def keep_logs(bench: Bench, name: str) -> None:
    """Copy the ends of the logs beside the document, for a part that went wrong."""
    source, folder = bench.folder / name, bench.options.output.parent / f"{bench.options.output.stem}-logs"
    folder.mkdir(parents=True, exist_ok=True)
    for file in sorted(source.rglob("*.log")) if source.is_dir() else [source]:
        with suppress(OSError):
            (folder / f"{name}-{file.name}").write_text(file.read_text(errors="replace")[-20_000:])


def models_at(slo: float, bench: Bench, found: dict[str, Any]) -> int:
    """The most models of a part whose p95 of the first byte was within the objective; 0: of none."""
    traces = [each for each in found.values() if isinstance(each, dict) and "first_byte_s" in each]
    within = [each["models"] for each in traces if not each["failed"] and each["first_byte_s"]["p95"] <= slo]
    return max(within, default=0)


def measure(bench: Bench, found: dict[str, Any]) -> None:
    options = bench.options
    parts = {"ours": ours, "stopstart": stopstart, "oneserver": oneserver}
    found["machine"] = machine()
    found["options"] = {name: value for name, value in vars(options).items() if name != "output"}
    found["weights_bytes"], found["declared_bytes"] = bench.size, bench.need
    for name in options.parts:
        began = time.monotonic()
        part: dict[str, Any] = {}
        log(f"part {name}")
        guarded(part, "part", lambda name=name, part=part: parts[name](bench, part))  # type: ignore[misc]
        if failed := part.pop("part"):
            part |= failed
        found[name] = part | {"models_at_slo": models_at(options.slo, bench, part), "took_s": time.monotonic() - began}
        options.output.write_text(json.dumps(found, indent=2, default=str))
        log(f"part {name} took {found[name]['took_s']:.0f} s")


def words(text: str) -> list[str]:
    return text.split(",")


def numbers(text: str) -> list[float]:
    return [float(each) for each in text.split(",") if each]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--parts", type=words, default=["ours", "oneserver", "stopstart"])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--models", type=int, default=24)
    parser.add_argument("--gigabytes", type=float, default=4.0, help="size of each model's bf16 weights")
    parser.add_argument("--allowed", type=float, default=32.0, metavar="GIGABYTES", help="of GPU memory")
    parser.add_argument("--rate", type=float, default=2.0, help="requests a second")
    parser.add_argument("--more-rates", type=numbers, default=[8.0], help="for ours, 15 s each")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the trace")
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds after which a request has failed")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--slo", type=float, default=0.5, help="seconds, of the p95 of the first byte")
    parser.add_argument("--window", type=int, default=15, help="seconds after which an idle service leaves the GPU")
    parser.add_argument("--wait", type=float, default=90.0, help="seconds for all services to leave it at first")
    options = parser.parse_args(arguments)
    options.allowed_bytes = math.floor(options.allowed * 1e9)
    with tempfile.TemporaryDirectory() as folder:
        log("writing the model")
        measure(Bench(Path(folder), options), {})


if __name__ == "__main__":
    main()
