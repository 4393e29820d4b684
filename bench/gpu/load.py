"""Throughput under load on a GPU: models served over HTTP beside a bare loop over the same module and batch size.

    PYTHONPATH=platform:predictor python bench/gpu/load.py FOLDER > load.json

FOLDER is made, and must not exist. `--small --device cpu` tries it anywhere. A part that fails says so in the JSON and
the others go on; load_alone.py has the parts without a server. Each case sends binary tensors by 8 processes; its
`over_bare` is rows a second over those of the bare loop of the same kind (graphs or eager) with batches of 32, and
`over_eager` over the eager one.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import load_models
from guarded import guarded
from load_client import Clients
from load_models import Way

HERE = Path(__file__).resolve().parent
CONNECTIONS = {1: 128, 8: 32, 32: 8}  # by the rows of a request
DATATYPES = {"resnet": "UINT8", "bert": "INT64"}
TICKS = os.sysconf("SC_CLK_TCK")


def main(options: argparse.Namespace) -> dict[str, Any]:
    began = time.monotonic()
    told: dict[str, Any] = {"machine": {"cores": os.cpu_count()}}
    guarded(told, "written_s", lambda: written(options))
    guarded(told, "alone", lambda: alone(options))
    guarded(told, "served", lambda: served(options, told, began, load_models.WAYS))
    told["took_s"] = round(time.monotonic() - began, 1)
    return told


def written(options: argparse.Namespace) -> float:
    started = time.monotonic()
    options.folder.mkdir(parents=True)
    words = ["-c", "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]); import load_models;"
             "load_models.write(Path(sys.argv[2]), bool(int(sys.argv[3])), sys.argv[4])"]  # fmt: skip
    call([*words, str(HERE), str(options.folder), str(int(options.small)), options.device])
    return round(time.monotonic() - started, 1)


def alone(options: argparse.Namespace) -> Any:
    words = [str(HERE / "load_alone.py"), str(options.folder), "--device", options.device]
    words += ["--seconds", str(options.seconds / 4)] + ["--small"] * options.small
    return json.loads(call(words))


def call(words: list[str]) -> str:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        raise RuntimeError(f"{words[:2]} failed: {done.stderr[-2500:]}")
    return done.stdout


def served(options: argparse.Namespace, told: dict[str, Any], began: float, ways: Sequence[Way]) -> dict[str, Any]:
    """Cases one after the other, those that matter most first."""
    log = options.folder / "server.log"
    clients = Clients(8)
    with log.open("w") as errors:
        server = subprocess.Popen(command(options, ways), stderr=errors)
    try:
        port = listening(server, log)
        found: dict[str, Any] = {"ready_s": ready(server, port, log, ways)}
        found["graphs_logged"] = [line for line in log.read_text().splitlines() if "graphs." in line][:4]
        for way, rows in cases(ways):
            if time.monotonic() - began > options.budget:
                found["skipped"] = [*found.get("skipped", []), f"{way.name} by {rows}"]
                continue
            one = partial(case, options, told, clients, (server.pid, port), way, rows)
            guarded(found, f"{way.name} by {rows}", one)
        return found
    finally:
        server.terminate()
        server.wait(30)
        clients.close()


def cases(ways: Sequence[Way]) -> Iterator[tuple[Way, int]]:
    """Eager ones are for comparison alone: requests of 8 rows are left out."""
    for rows in CONNECTIONS:
        yield from ((way, rows) for way in ways if way.graphs)
    for rows in (1, 32):
        yield from ((way, rows) for way in ways if not way.graphs)


def command(options: argparse.Namespace, ways: Sequence[Way]) -> list[str]:
    chosen = [word for way in ways for word in ("--load-model", way.name)]
    return [
        sys.executable, "-m", "pilotlight_predictor", "--model-repository", str(options.folder / "models"),
        "--device", options.device, "--host", "127.0.0.1", "--http-port", "0", "--grpc-port", "-1",
        "--metrics-port", "-1", "--log-format", "json", "--load-timeout-s", "120",
        "--model-control-mode", "explicit", "--fronts", str(options.fronts), *chosen,
    ]  # fmt: skip


def listening(server: "subprocess.Popen[bytes]", log: Path) -> int:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and server.poll() is None:
        for line in log.read_text().splitlines():
            document = json.loads(line) if line.startswith("{") else {}
            if document.get("event") == "listening":
                return int(document["http_port"])
        time.sleep(0.02)
    raise RuntimeError(f"the server does not listen: {log.read_text()[-2000:]}")


def ready(server: "subprocess.Popen[bytes]", port: int, log: Path, ways: Sequence[Way]) -> float:
    started = time.monotonic()
    while time.monotonic() < started + 120 and server.poll() is None:
        try:
            for way in ways:
                get(port, f"/v2/models/{way.name}/ready")
            return round(time.monotonic() - started, 1)
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"the server is not ready: {log.read_text()[-3000:]}")


def case(
    options: argparse.Namespace, told: dict[str, Any], clients: Clients, server: tuple[int, int], way: Way, rows: int
) -> dict[str, Any]:
    pid, port = server
    before, used = stats(port, way.name), threads(pid)
    began = time.monotonic()
    found = clients.measure(port, request(options, way, rows), CONNECTIONS[rows], 0.5, options.seconds)
    took = time.monotonic() - began
    after, busy = stats(port, way.name), threads(pid)
    found["rows_s"] = round(found.pop("answers_s") * rows, 1)
    batches = max(after["batches"] - before["batches"], 1)
    found["mean_batch"] = round((after["rows"] - before["rows"]) / batches, 2)
    found["batch_ms"] = round(
        (after["compute_ns"] - before["compute_ns"]) / max(after["asked"] - before["asked"], 1) / 1e6, 3
    )
    share = {name: round((ticks - used.get(name, 0)) / TICKS / took, 2) for name, ticks in busy.items()}
    found["loop_cpu"] = share.pop("loop")
    found["threads_cpu"] = sorted(share.values(), reverse=True)[:4]
    return found | over_bare(told, way, found["rows_s"])


def over_bare(told: dict[str, Any], way: Way, rows_s: float) -> dict[str, float]:
    try:
        bare = told["alone"]["bare"][way.model]["32"]
        eager = max(bare["eager"], bare["eager_pinned"])
        own = bare["graph"] if way.graphs else eager
        return {"over_bare": round(rows_s / own, 3), "over_eager": round(rows_s / eager, 3)}
    except (KeyError, TypeError):
        return {}


def request(options: argparse.Namespace, way: Way, rows: int) -> bytes:
    x = load_models.rows_of(way.model, rows, options.small)
    tensor = {"name": "x", "shape": list(x.shape), "datatype": DATATYPES[way.model],
              "parameters": {"binary_data_size": x.nbytes}}  # fmt: skip
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    lines = [
        f"POST /v2/models/{way.name}/infer HTTP/1.1", "Host: localhost", "Content-Type: application/octet-stream",
        f"Inference-Header-Content-Length: {len(head)}", f"Content-Length: {len(head) + x.nbytes}", "", "",
    ]  # fmt: skip
    return "\r\n".join(lines).encode() + head + x.tobytes()


def stats(port: int, model: str) -> dict[str, int]:
    (one,) = json.loads(get(port, f"/v2/models/{model}/versions/1/stats"))["model_stats"]
    told = one["inference_stats"]
    return {
        "batches": one["execution_count"], "rows": one["inference_count"],
        "asked": told["compute_infer"]["count"], "compute_ns": told["compute_infer"]["ns"],
    }  # fmt: skip


def threads(pid: int) -> dict[str, int]:
    """Processor time by thread, in ticks; `loop` is the event loop's."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        found["loop" if int(task.name) == pid else task.name] = int(fields[11]) + int(fields[12])
    return found


def get(port: int, path: str) -> bytes:
    return bytes(urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10).read())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--fronts", type=int, default=0)
    parser.add_argument("--budget", type=float, default=135.0, help="no case begins later than that")
    print(json.dumps(main(parser.parse_args()), indent=1))
