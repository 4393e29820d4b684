"""One row per request on a GPU, with and without --fronts, beside a bare loop over the same module.

    PYTHONPATH=platform:predictor python bench/gpu/fronts.py FOLDER > fronts.json

FOLDER is made, and must not exist. `--small --device cpu` tries it anywhere. The models, the requests and the bare loop
are those of load.py; `over_bare` is rows a second over those of the bare loop with batches of 32, with CUDA graphs as
the served models have. The first case begins 5 s after the server is ready: a second after that, each process imports
what its first requests do not need. `cpu` is the processor time of each process of the server, in cores. A count of
fronts that fails says so in the JSON and the others go on.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import load
from guarded import guarded
from load_client import Clients
from load_models import Way

SETTLE_S = 5.0
BARE = """
import json, sys
sys.path.insert(0, sys.argv[1])
from types import SimpleNamespace
from pathlib import Path
import load_alone
alone = load_alone.Alone(SimpleNamespace(
    folder=Path(sys.argv[2]), small=bool(int(sys.argv[3])), seconds=float(sys.argv[4]), device=sys.argv[5]))
print(json.dumps({model: load_alone.guarded(lambda: alone.bare(model)) for model in ("resnet", "bert")}))
"""


def main(options: argparse.Namespace) -> dict[str, Any]:
    began = time.monotonic()
    told: dict[str, Any] = {"machine": {"cores": os.cpu_count()}, "date": time.strftime("%Y-%m-%d")}
    guarded(told["machine"], "gpu", gpu)
    guarded(told, "written_s", lambda: load.written(options))
    guarded(told, "alone", lambda: {"bare": bare(options)})
    told["fronts"] = {}
    ways = [Way(model, count, True) for model in ("resnet", "bert") for count in options.instances]
    for fronts in options.counts:
        if time.monotonic() - began < options.budget:
            guarded(told["fronts"], str(fronts), partial(served, options, told, fronts, ways, began))
    told["took_s"] = round(time.monotonic() - began, 1)
    return told


def gpu() -> str:
    words = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def bare(options: argparse.Namespace) -> Any:
    here, seconds = str(load.HERE), str(options.seconds / 4)
    words = ["-c", BARE, here, str(options.folder), str(int(options.small)), seconds, options.device]
    return json.loads(load.call(words))


def served(options: argparse.Namespace, told: dict[str, Any], fronts: int, ways: list[Way], began: float) -> Any:
    options.fronts = fronts
    log = options.folder / f"server-{fronts}.log"
    clients = Clients(options.clients)
    with log.open("w") as errors:
        server = subprocess.Popen(load.command(options, ways), stderr=errors)
    try:
        port = load.listening(server, log)
        found: dict[str, Any] = {"ready_s": load.ready(server, port, log, ways)}
        time.sleep(SETTLE_S)
        for way in ways:
            for connections in options.connections:
                if time.monotonic() - began < options.budget:
                    one = partial(case, options, told, clients, (server.pid, port), way, connections)
                    guarded(found, f"{way.name}, {connections} connections", one)
        found["errors"] = [line for line in log.read_text().splitlines() if '"ERROR"' in line][:5]
        return found
    finally:
        server.terminate()
        server.wait(30)
        clients.close()


def case(
    options: argparse.Namespace, told: dict[str, Any], clients: Clients, server: tuple[int, int], way: Way,
    connections: int,
) -> dict[str, Any]:  # fmt: skip
    pid, port = server
    clients.measure(port, load.request(options, way, 1), connections, 0.1, 0.3)
    before, used = load.stats(port, way.name), processes(pid)
    began = time.monotonic()
    found = clients.measure(port, load.request(options, way, 1), connections, 0.5, options.seconds)
    took = time.monotonic() - began
    after, busy = load.stats(port, way.name), processes(pid)
    found["rows_s"] = found.pop("answers_s")
    found["mean_batch"] = round((after["rows"] - before["rows"]) / max(after["batches"] - before["batches"], 1), 2)
    found["cpu"] = [round((busy[each] - used.get(each, 0)) / load.TICKS / took, 2) for each in sorted(busy)]
    return found | load.over_bare(told, way, found["rows_s"])


def processes(pid: int) -> dict[int, int]:
    """Processor time in ticks of a server and its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    fields = {
        each: Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split() for each in (pid, *map(int, children))
    }
    return {each: int(told[11]) + int(told[12]) for each, told in fields.items()}


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--budget", type=float, default=150.0, help="no case begins later than that")
    parser.add_argument("--counts", type=numbers, default=[0, 4], help="of fronts; 0: without")
    parser.add_argument("--instances", type=numbers, default=[2, 3])
    parser.add_argument("--connections", type=numbers, default=[128, 256])
    parser.add_argument("--clients", type=int, default=8)
    print(json.dumps(main(parser.parse_args()), indent=1))
