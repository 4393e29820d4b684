"""`python -m bench.waterfall`: where the time from exec to ready goes, ours beside KServe's, as figures and a picture.

Pilotlight tells its phases itself, in the line of its log that says it is ready. KServe's server is started behind a
few lines that import first what it imports anyway and note the time between. Starts alternate; the one in the middle is
drawn.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from bench.environments import ROOT, WORK, Environment, own_environment, peer_environment
from bench.layouts import PEERS
from bench.load import BenchError
from bench.machine import busy_share, cores_here, describe, slug
from bench.models import Model, write_models
from bench.plot import COLOURS, FAINT, drawing, plain, save
from bench.processes import Command, cpu_seconds, free_ports, running
from bench.servers import Ports, start_pilotlight

QUIET: Final = 0.1  # of the machine, used by others; above it a run is not kept
TITLES: Final = {"pilotlight": "Pilotlight", "kserve": "KServe"}
OWN: Final = ("boot", "listen", "import", "fetch", "load", "warmup")
STAMPED: Final = """
import sys, time
stamps = [time.clock_gettime(time.CLOCK_BOOTTIME)]
import onnxruntime
stamps.append(time.clock_gettime(time.CLOCK_BOOTTIME))
import kserve
stamps.append(time.clock_gettime(time.CLOCK_BOOTTIME))
import os, runpy
with open("/proc/self/stat", "rb") as stat:
    started = int(stat.read().rpartition(b") ")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
print("stamps", *(stamp - started for stamp in stamps), flush=True)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclass(frozen=True, slots=True)
class Start:
    """One start in seconds: phases in their order, which add up to `ready_s`, and the CPU time of all of it."""

    ready_s: float
    cpu_s: float
    phases: dict[str, float]


def own_phases(log: str) -> dict[str, float]:
    for line in log.splitlines():
        if '"event":"ready"' in line:
            told = json.loads(line)["phases"]
            return {name: float(told[name]) for name in OWN if name in told}
    raise BenchError("Pilotlight's log has no line that says it is ready")


def stamped_phases(log: str) -> dict[str, float]:
    found = next((line.split()[1:] for line in log.splitlines() if line.startswith("stamps ")), None)
    if found is None:
        raise BenchError("KServe's start left no stamps in its log")
    booted, runtime, framework = map(float, found)
    return {"boot": booted, "import onnxruntime": runtime - booted, "import kserve": framework - runtime}


def whole(phases: Mapping[str, float], ready_s: float, rest: str) -> dict[str, float]:
    """With what nobody told of as the last phase, so that they add up."""
    return {**phases, rest: max(0.0, ready_s - sum(phases.values()))}


def middle(starts: Sequence[Start]) -> Start:
    """A real start: medians of single phases would not add up."""
    return sorted(starts, key=lambda start: start.ready_s)[len(starts) // 2]


@dataclass(frozen=True, slots=True)
class Subject:
    """`command` gets a free port; `phases` reads the log; `rest` names what is left."""

    name: str
    command: Callable[[int], Command]
    phases: Callable[[str], dict[str, float]]
    rest: str


def subjects(model: Model) -> list[Subject]:
    own, peer = own_environment(), peer_environment("kserve")
    return [
        Subject(
            "pilotlight", lambda port: start_pilotlight(own, [model], WORK, Ports(port, 0, False)), own_phases, "answer"
        ),
        Subject("kserve", lambda port: peer_command(peer, model, port), stamped_phases, "load, listen, answer"),
    ]


def peer_command(env: Environment, model: Model, port: int) -> Command:
    script = str(PEERS / "kserve_server.py")
    return Command([str(env.python), "-c", STAMPED, script, str(port), f"{model.name}={model.path}"])


def measure(subject: Subject, model: Model) -> Start:
    ports, log = free_ports(2), WORK / "work" / f"waterfall-{subject.name}.log"
    with running(subject.command(ports[0]), ports, [model.name], cores_here(), log) as server:
        cpu_s = cpu_seconds(server.pid)
    text = log.read_text(errors="replace")
    return Start(server.ready_s, cpu_s, whole(subject.phases(text), server.ready_s, subject.rest))


def run(count: int) -> dict[str, list[Start]]:
    """The first start of each fills the page cache and is not counted."""
    model = write_models(WORK / "work")["iris"]
    rows = subjects(model)
    starts: dict[str, list[Start]] = {row.name: [] for row in rows}
    for number in range(count + 1):
        for row in rows if number % 2 == 0 else reversed(rows):
            start = measure(row, model)
            print(f"{row.name:10}  ready {start.ready_s:.3f} s  cpu {start.cpu_s:.2f} s", file=sys.stderr)
            if number:
                starts[row.name].append(start)
    return starts


def document(starts: Mapping[str, Sequence[Start]], date: str, machine: Mapping[str, str]) -> dict[str, Any]:
    rows = {
        name: {
            "ready_s": _figures([start.ready_s for start in row]),
            "cpu_s": _figures([start.cpu_s for start in row]),
            **({"listens_s": _figures([listens(start) for start in row])} if "listen" in row[0].phases else {}),
            "drawn": asdict(middle(row)),
            "starts": [asdict(start) for start in row],
        }
        for name, row in starts.items()
    }
    return {"benchmark": "waterfall", "date": date, "machine": dict(machine), "servers": rows}


def listens(start: Start) -> float:
    """From exec until the port answers, which only our own phases tell."""
    return start.phases["boot"] + start.phases["listen"]


def _figures(values: Sequence[float]) -> dict[str, float]:
    return {"least": min(values), "median": statistics.median(values)}


def draw(starts: Mapping[str, Sequence[Start]], path: Path) -> None:
    """One bar per phase, each beginning where the one before it ends. The same figures give the same bytes."""
    drawn = {name: middle(row) for name, row in starts.items()}
    heights = [len(start.phases) + 1 for start in drawn.values()]
    with drawing() as pyplot:
        figure, axes = pyplot.subplots(
            len(drawn), 1, figsize=(9, 0.3 * sum(heights) + 0.6), sharex=True, squeeze=False, height_ratios=heights,
            layout="constrained",
        )  # fmt: skip
        for axis, (name, start) in zip(axes[:, 0], drawn.items(), strict=True):
            _falling(axis, start, COLOURS[name])
            title = f"{TITLES[name]}: ready {start.ready_s:.2f} s after exec, {start.cpu_s:.2f} s of CPU time"
            axis.set_title(title, loc="left", fontsize=10, fontweight="bold")
        axes[-1, 0].set_xlabel("seconds since exec")
        save(figure, path)


def _falling(axis: Any, start: Start, colour: str) -> None:
    begun = 0.0
    for row, (_, seconds) in enumerate(start.phases.items()):
        axis.barh(row, seconds, left=begun, height=0.7, color=colour)
        begun += seconds
        axis.annotate(f" {seconds * 1000:.0f} ms", (begun, row), va="center", fontsize=8)
    axis.set_yticks(range(len(start.phases)), list(start.phases))
    axis.invert_yaxis()
    axis.margins(x=0.1)
    axis.xaxis.grid(True, color=FAINT, linewidth=0.7)
    plain(axis)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.waterfall", description=__doc__)
    parser.add_argument("--starts", type=int, default=20, help="of each server (20)")
    parser.add_argument("--keep", action="store_true", help="into bench/results, also from a machine that is busy")
    options = parser.parse_args(arguments)
    busy = busy_share()
    if busy > QUIET:
        print(f"warning: others use {busy:.0%} of this machine; the figures will vary", file=sys.stderr)
    try:
        starts = run(options.starts)
    except BenchError as error:
        print(f"waterfall: {error}", file=sys.stderr)
        return 1
    kept = options.keep or (busy <= QUIET and options.starts >= 20)
    write(starts, ROOT / "bench" / "results" if kept else WORK / "results")
    return 0


def write(starts: Mapping[str, Sequence[Start]], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    made = document(starts, datetime.now(UTC).isoformat(timespec="seconds"), describe())
    stem = folder / f"{made['date'][:10]}-{slug(made['machine'])}-waterfall"
    stem.with_suffix(".json").write_text(json.dumps(made, indent=2) + "\n")
    draw(starts, stem.with_suffix(".svg"))
    for name, row in made["servers"].items():
        for figure in ("listens_s", "ready_s", "cpu_s"):
            if figure in row:
                least, median = row[figure]["least"], row[figure]["median"]
                print(f"{TITLES[name]:10}  {figure:9}  {least:.3f} at least, {median:.3f} median")
    print(f"written: {stem}.json, .svg", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
