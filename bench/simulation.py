"""`python -m bench.simulation`: traces on the embedded platform, beside what `platformctl simulate` predicts for them.

Each trace is replayed against a Python model that loads in a known time and sleeps a known time for each request, one
request at a time, on a platform that `platformctl up` starts. Windows are the shortest that Knative allows (6 s), so
that a trace of a minute scales to zero and back. The profile is measured first, by `platformctl profile`.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import aiohttp
import numpy as np
from tests.ports import free_port

from bench.machine import describe, load_average, slug
from pilotlight.simulation.trace import Trace
from pilotlight.simulation.traces.table import read_trace
from pilotlight.targets.local.client import LocalTarget
from pilotlight.targets.local.control_process_launcher import ensure
from pilotlight.targets.local.home_directory import home

# A minute each, with seeds: the same requests in every run and in the simulation.
TRACES: Mapping[str, str] = {
    "steady": "poisson:rate=8,duration=60s,seed=11",
    "sparse": "poisson:rate=0.08,duration=90s,seed=12",
    "bursts": "bursts:rate=0,burst=25,every=30s,length=5s,duration=60s,seed=13",
    "on-off": "on-off:rate=12,on=8s,off=14s,duration=80s,seed=14",
    "spikes": "spikes:rate=1,peak=25,every=20s,decay=4s,duration=60s,seed=15",
    "diurnal": "diurnal:rate=9,peak=17,period=60s,duration=60s,seed=16",
}
# Named before the simulation was first compared with the platform, and not run until it was finished.
HELD_OUT = ("spikes", "diurnal")
BARS: Mapping[str, float] = {"cold_starts": 0.10, "replica_seconds": 0.10, "p50": 0.20, "p99": 0.20}
RUNS = 3
SUBJECT = "simulation"
ON_CLUSTER = "simulation-cluster"
SERVICE = "nap"
SERVICE_S, LOAD_S = 0.25, 4.0
MODEL = f"""
import time

time.sleep({LOAD_S})
INPUTS = {{"x": ("FP32", [1])}}
OUTPUTS = {{"y": ("FP32", [1])}}


class Model:
    def predict(self, x):
        time.sleep({SERVICE_S})
        return {{"y": x}}
"""
DOCUMENT = f"""
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: {SERVICE}
  annotations: {{autoscaling.knative.dev/window: 6s}}
spec:
  predictor:
    minReplicas: 0
    maxReplicas: 4
    scaleMetric: concurrency
    scaleTarget: 2
    model:
      modelFormat: {{name: python}}
      storageUri: ./model.py
"""
LEAD_S = 0.2  # until the first request of a trace
BODY = json.dumps({"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}).encode()
SAMPLE_S = 0.1  # of the replicas
PATIENCE_S = 60.0
Figures = dict[str, float]


class Bench(NamedTuple):
    """A platform in a folder of its own, and the document that runs on it."""

    folder: Path
    environ: Mapping[str, str]

    @property
    def document(self) -> Path:
        return self.folder / "service.yaml"

    @property
    def profile(self) -> Path:
        return self.folder / "profile.json"

    @property
    def target(self) -> LocalTarget:
        return LocalTarget(ensure(home(self.environ), start=False))

    def platformctl(self, *words: str) -> str:
        line = [sys.executable, "-m", "platformctl", *words]
        done = subprocess.run(line, env=dict(self.environ), capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"platformctl {' '.join(words)}: {done.stderr.strip()[-500:]}")
        return done.stdout

    def wait(self, reached: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + PATIENCE_S
        while not reached():
            if time.monotonic() > until:
                raise RuntimeError(f"waited {PATIENCE_S:g} s for {what}")
            time.sleep(SAMPLE_S)


def started(folder: Path) -> Bench:
    """Start a platform without the pilot light, measure the profile and leave the service at zero."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PILOTLIGHT_", "INFERENCE_"))}
    bench = Bench(folder, {**clean, "PILOTLIGHT_HOME": str(folder / "home"), "PILOTLIGHT_PILOT_LIGHT": "off"})
    (folder / "model.py").write_text(MODEL)
    bench.document.write_text(DOCUMENT)
    ports = ("--gateway-port", str(free_port()), "--api-port", str(free_port()), "--service-ports", "0")
    bench.platformctl("up", *ports)
    bench.platformctl(
        "profile",
        "-f",
        str(bench.document),
        "--write",
        str(bench.profile),
        "--cold-starts",
        "5",
        "--concurrency",
        "1,4",
    )
    bench.platformctl("deploy", "-f", str(bench.document))
    return bench


class ReplicaSampler(threading.Thread):
    """Replicas that exist, every SAMPLE_S: names of all that were there, and the integral of their number."""

    def __init__(self, target: LocalTarget, seconds: float) -> None:
        super().__init__()
        self._target, self._stopped = target, threading.Event()
        self._until = time.monotonic() + seconds
        self.names: set[str] = set()
        self.replica_seconds = 0.0

    def run(self) -> None:
        before = time.monotonic()
        while not self._stopped.wait(SAMPLE_S):
            replicas = [
                each.name for row in self._target.status(("default", SERVICE)).revisions for each in row.replicas
            ]
            now = time.monotonic()
            self.names.update(replicas)
            self.replica_seconds += len(replicas) * max(0.0, min(now, self._until) - before)
            before = now

    def stop(self) -> None:
        self._stopped.set()
        self.join()


async def replay(url: str, trace: Trace, headers: Mapping[str, str] | None = None) -> list[float]:
    """Send each request at its time, whether or not earlier ones have their response; return the latencies."""
    latencies: list[float] = []
    begin = time.monotonic() + LEAD_S
    sent = {"Content-Type": "application/json", **(headers or {})}

    async def send(session: aiohttp.ClientSession, at: float) -> None:
        await asyncio.sleep(max(0.0, begin + at - time.monotonic()))
        async with session.post(url, data=BODY, headers=sent) as response:
            await response.read()
            if response.status != 200:
                raise RuntimeError(f"a request failed with {response.status}")
        latencies.append(time.monotonic() - begin - at)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session, asyncio.TaskGroup() as group:
        for at in trace.arrivals.tolist():
            group.create_task(send(session, at))
    await asyncio.sleep(max(0.0, begin + trace.seconds - time.monotonic()))
    return latencies


def measured(bench: Bench, trace: Trace) -> Figures:
    """Replay the trace against the service at zero."""
    target = bench.target
    bench.wait(lambda: not any(row.replicas for row in target.status(("default", SERVICE)).revisions), "no replicas")
    url = f"{target.status(('default', SERVICE)).url}/v2/models/{SERVICE}/infer"
    sampler = ReplicaSampler(target, trace.seconds)
    sampler.start()
    try:
        latencies = asyncio.run(replay(url, trace))
    finally:
        sampler.stop()
    pods = {"cold_starts": float(len(sampler.names)), "replica_seconds": sampler.replica_seconds}
    return {**pods, **latency_figures(latencies)}


def latency_figures(latencies: Sequence[float]) -> Figures:
    p50, p99 = np.quantile(latencies, (0.5, 0.99))
    return {"p50": float(p50), "p99": float(p99), "requests": float(len(latencies))}


def predicted(bench: Bench, trace: Trace) -> Figures:
    """Return what the simulation says of the same requests, document and profile."""
    file = bench.folder / "trace.csv"
    file.write_text("offset\n" + "".join(f"{at:.6f}\n" for at in trace.arrivals))
    options = (
        "--trace",
        f"{file}?duration={trace.seconds}s",
        "--profile",
        str(bench.profile),
        "--target",
        "local",
        "-o",
        "json",
    )
    done = json.loads(bench.platformctl("simulate", "-f", str(bench.document), *options))
    figures = done["simulations"][0]["figures"]
    return {name: float(figures[name]) for name in (*BARS, "requests")}


def measure(bench: Bench, names: Sequence[str], runs: int) -> dict[str, list[Figures]]:
    """Return the runs of each trace; a round of all traces after the other, since the load of a machine drifts."""
    repeated: dict[str, list[Figures]] = {name: [] for name in names}
    for number in range(runs):
        for name in names:
            repeated[name].append(measured(bench, trace_of(name)))
            print(f"run {number + 1}: {name}", file=sys.stderr, flush=True)
    return repeated


def trace_of(name: str) -> Trace:
    trace = read_trace(TRACES[name])
    assert isinstance(trace, Trace)
    return trace


def compare(repeated: Mapping[str, Sequence[Figures]], predict: Callable[[Trace], Figures]) -> dict[str, Any]:
    """Return runs, medians, predictions and errors by trace."""
    traces: dict[str, Any] = {}
    for name, runs in repeated.items():
        medians = {each: median(run[each] for run in runs) for each in BARS}
        prediction = predict(trace_of(name))
        errors = {each: prediction[each] / medians[each] - 1 for each in BARS}
        traces[name] = {
            "trace": TRACES[name], "held_out": name in HELD_OUT, "runs": runs, "measured": medians,
            "predicted": prediction, "errors": errors,
        }  # fmt: skip
    return traces


def predicted_again(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result with what the simulation predicts now, from the profile and for the runs that it has."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), os.environ)
        bench.document.write_text(DOCUMENT)
        (bench.folder / "model.py").write_text(MODEL)
        bench.profile.write_text(json.dumps(result["profile"]))
        runs = {name: row["runs"] for name, row in result["traces"].items()}
        return {**result, "traces": compare(runs, partial(predicted, bench))}


def table(result: Mapping[str, Any]) -> str:
    """Return the Markdown table of a result: median and range of the runs, prediction, its error from the median."""
    titles = {"cold_starts": "cold starts", "replica_seconds": "replica-seconds", "p50": "p50, s", "p99": "p99, s"}
    lines = ["| trace | requests | " + " | ".join(titles[name] for name in BARS) + " |", "|---|---" * 3 + "|"]
    for name, row in result["traces"].items():
        cells = []
        for each, bar in BARS.items():
            error = row["errors"][each]
            least, most = (f"{bound(run[each] for run in row['runs']):.3g}" for bound in (min, max))
            spread = f" [{least}–{most}]" if least != most else ""
            text = f"{row['measured'][each]:.3g}{spread} → {row['predicted'][each]:.3g} ({error:+.0%})"
            cells.append(text if abs(error) <= bar else f"**{text}**")
        held = " (held out)" if row["held_out"] else ""
        lines.append(f"| {name}{held} | {row['predicted']['requests']:.0f} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.simulation", description=__doc__)
    parser.add_argument("--traces", default=",".join(TRACES), help="which to run (all)")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"runs of each trace ({RUNS})")
    parser.add_argument("--cluster", action="store_true", help="on Knative and KEDA of KUBECONFIG's cluster, 50 min")
    parser.add_argument("--again", type=Path, metavar="FILE", help="predict the traces of a result again; run nothing")
    parser.add_argument("--keep", action="store_true", help="write the result to bench/results")
    options = parser.parse_args(arguments)
    if options.again:
        result = json.loads(options.again.read_text())
        if "modes" in result:
            from bench.cluster.simulated import predicted_again as again  # it needs the client of a cluster
        else:
            again = predicted_again
        return write(again(result), options.again)
    names = options.traces.split(",")
    if options.cluster:
        return on_cluster(names, options.runs, keep=options.keep)
    machine = describe()
    with tempfile.TemporaryDirectory() as folder:
        bench = started(Path(folder))
        try:
            traces = compare(measure(bench, names, options.runs), partial(predicted, bench))
            profile = json.loads(bench.profile.read_text())
        finally:
            bench.platformctl("down")
    date = datetime.now(UTC).isoformat(timespec="seconds")
    machine["load_after"] = load_average()
    result = {"benchmark": SUBJECT, "date": date, "machine": machine, "profile": profile, "traces": traces}
    print(table(result))
    if options.keep:
        from bench.__main__ import RESULTS  # it imports this module for the page

        return write(result, RESULTS / f"{date[:10]}-{slug(machine)}-simulation.json")
    return missed(traces)


def write(result: Mapping[str, Any], file: Path) -> int:
    """Write a result and its page; return the exit code."""
    is_cluster = "modes" in result
    title = "a cluster" if is_cluster else "the embedded platform"
    file.write_text(json.dumps(result, indent=2) + "\n")
    page = cluster_tables(result) if is_cluster else table(result)
    file.with_suffix(".md").write_text(f"# Simulation against {title}\n\n{page}\n")
    return max([missed(each["traces"]) for each in (result["modes"].values() if is_cluster else [result])])


def on_cluster(names: Sequence[str], runs: int, *, keep: bool) -> int:
    """Run the traces on the cluster of KUBECONFIG and print their tables; with `keep` write the result."""
    from tests.cluster.real_cluster import find_cluster

    from bench.__main__ import RESULTS
    from bench.cluster.__main__ import versions
    from bench.cluster.simulated import run

    cluster = find_cluster(os.environ)
    if isinstance(cluster, str):
        print(f"bench: {cluster}", file=sys.stderr)
        return 1
    machine = describe()
    modes = run(cluster, names, runs, int(machine["cores"]))
    date = datetime.now(UTC).isoformat(timespec="seconds")
    machine["load_after"] = load_average()
    result = {
        "benchmark": ON_CLUSTER, "date": date, "machine": machine, "versions": versions(cluster), "modes": modes
    }  # fmt: skip
    print(cluster_tables(result))
    if keep:
        return write(result, RESULTS / f"{date[:10]}-{slug(machine)}-{ON_CLUSTER}.json")
    return max(missed(mode["traces"]) for mode in modes.values())


def cluster_tables(result: Mapping[str, Any]) -> str:
    """Return the Markdown table of each mode."""
    titles = {"knative": "Knative", "keda": "Raw Deployments, our gateway and KEDA"}
    return "\n\n".join(f"{titles[mode]}:\n\n{table(each)}" for mode, each in result["modes"].items())


def missed(traces: Mapping[str, Any]) -> int:
    """Print what misses its bar; return the exit code."""
    found = [
        f"{name}: {each}"
        for name, row in traces.items()
        for each, bar in BARS.items()
        if abs(row["errors"][each]) > bar
    ]
    for each in found:
        print(f"missed: {each}", file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
