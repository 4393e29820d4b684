"""Sending load with wrk from its own core, and reading what it says (request.lua prints one JSON line at the end)."""

import json
import resource
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, replace
from pathlib import Path

from bench.machine import Cores, on_core
from bench.models import Payload

WARM_UP_S = 1.0
SCRIPT = Path(__file__).parent / "request.lua"
ERROR_KINDS = ("status", "connect", "read", "write", "timeout")
FLOOD_MARGIN_S = 2.0


class BenchError(Exception):
    """Something that a person must change before the benchmark can say anything."""


@dataclass(frozen=True, slots=True)
class Load:
    """What one run of wrk measured; its rate is that of good answers. `load_cpu` is the share of its core wrk used."""

    rps: float
    p50_ms: float
    p99_ms: float
    errors: int
    load_cpu: float = 0.0
    answers: int = 0  # good ones


@dataclass(frozen=True, slots=True)
class Target:
    """One model of one running server, and the request for it; with `paths` they are asked in turn instead."""

    url: str
    payload: Payload
    body_file: Path
    paths: tuple[str, ...] = ()


def require_wrk() -> None:
    if shutil.which("wrk") is None:
        raise BenchError(
            "wrk is not installed: apt install wrk (Debian, Ubuntu), dnf install wrk (Fedora), brew install wrk"
        )


def send(target: Target, connections: int, seconds: float, cores: Cores) -> Load:
    """Closed-loop load: every connection sends its next request when the answer to the last one has arrived."""
    before = _children_cpu()
    with on_core(cores.load):
        finished = subprocess.run(_command(target, connections, seconds), capture_output=True, text=True, check=False)
    load = parse(finished.stdout + finished.stderr)
    return replace(load, load_cpu=(_children_cpu() - before) / seconds)


def send_beside_flood(
    quiet: Target, flood: Target, connections: int, seconds: float, cores: Cores
) -> tuple[Load, Load]:
    """One connection on `quiet` while many flood the other target; returns both loads.

    The flood is niced, so that the measuring wrk on the same core is not held up by it.
    """
    with on_core(cores.load):
        flooding = subprocess.Popen(
            ["nice", "-n", "19", *_command(flood, connections, seconds + FLOOD_MARGIN_S)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    try:
        time.sleep(FLOOD_MARGIN_S / 2)
        measured = send(quiet, 1, seconds, cores)
        flooding.send_signal(signal.SIGINT)  # wrk then ends early and still prints its result
        return measured, parse(flooding.communicate()[0])
    finally:
        flooding.kill()
        flooding.wait()


def parse(output: str) -> Load:
    """Reads the RESULT line, whose requests hold refused ones; an output without it is wrk's own complaint."""
    line = next((line for line in output.splitlines() if line.startswith("RESULT ")), None)
    if line is None:
        raise BenchError(f"wrk gave no result: {output.strip()[-300:] or 'it printed nothing'}")
    result = json.loads(line.removeprefix("RESULT "))
    answers = result["requests"] - result["status"]
    return Load(
        rps=answers * 1e6 / max(result["duration_us"], 1),
        p50_ms=result["p50_us"] / 1e3,
        p99_ms=result["p99_us"] / 1e3,
        errors=sum(result[kind] for kind in ERROR_KINDS),
        answers=answers,
    )


def _command(target: Target, connections: int, seconds: float) -> list[str]:
    headers = [f"{name}: {value}" for name, value in target.payload.headers.items()]
    measure = ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--timeout", "10s", "-s", str(SCRIPT)]
    return [*measure, target.url, "--", str(target.body_file), *headers, *target.paths]


def _children_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
