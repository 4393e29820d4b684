"""A result as people read it: the markdown table with ratios, and the README section that shows the newest one."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.load import BenchError
from bench.rounds import BENCHMARK, Result
from bench.servers import SERVERS

OURS = "pilotlight"
START_MARK, END_MARK = "<!-- bench:start -->", "<!-- bench:end -->"
SATURATED = 0.97  # share of its core from which on wrk is the limit
STARVED = 0.8  # share of its core below which a server under full load was disturbed by something else


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a figure, how it is shown, and whether more of it is better."""

    figure: str
    label: str
    more_is_better: bool = False
    digits: int = 2
    headline: bool = True  # also in the short table of the README


ROWS: tuple[Row, ...] = (
    *(
        row
        for c in (1, 32, 256)
        for row in (
            Row(f"json.c{c}.rps", f"JSON, {c} connection{'s' * (c > 1)}: requests/s", True, 0),
            Row(f"json.c{c}.p50_ms", f"JSON, {c} connection{'s' * (c > 1)}: p50 ms", headline=False),
            Row(f"json.c{c}.p99_ms", f"JSON, {c} connection{'s' * (c > 1)}: p99 ms"),
        )
    ),
    *(
        row
        for c in (1, 8)
        for row in (
            Row(f"binary.c{c}.rps", f"602 KB tensor, {c} connection{'s' * (c > 1)}: requests/s", True, 0),
            Row(f"binary.c{c}.mb_s", f"602 KB tensor, {c} connection{'s' * (c > 1)}: MB/s", True, 0, False),
            Row(f"binary.c{c}.p99_ms", f"602 KB tensor, {c} connection{'s' * (c > 1)}: p99 ms"),
        )
    ),
    Row("start.ready_s", "exec → model ready: s"),
    Row("memory.idle_mb", "idle memory: MB", digits=0),
    Row("fairness.beside_p50_ms", "second model beside a flood: p50 ms", headline=False),
    Row("fairness.alone_p99_ms", "second model alone: p99 ms", headline=False),
    Row("fairness.beside_p99_ms", "second model beside a flood: p99 ms"),
    Row("fairness.factor", "what the flood does to that p99: ×", digits=1, headline=False),
)


def table(result: Result, headline: bool = False) -> str:
    """One column per server; a peer's cell ends with how many times better ours is (below 1: theirs is better)."""
    servers = [server for server in SERVERS if server.name in result.samples]
    lines = ["| | " + " | ".join(f"**{server.title}**" for server in servers) + " |", "|---|" + "---:|" * len(servers)]
    for row in ROWS:
        if not (headline and not row.headline) and any(result.median(s.name, row.figure) for s in servers):
            cells = [cell(result, row, server.name) for server in servers]
            lines.append(f"| {row.label} | " + " | ".join(cells) + " |")
    lines.append("| failed requests | " + " | ".join(f"{result.errors(server.name):,}" for server in servers) + " |")
    return "\n".join(lines)


def cell(result: Result, row: Row, server: str) -> str:
    value = result.median(server, row.figure)
    if value is None:
        return "–"
    digits = row.digits if value >= 100 else max(row.digits, 1)
    text = f"{lower_bound(result, row, server)}{value:,.{digits}f}"
    ours = result.median(OURS, row.figure)
    if server == OURS:
        return f"**{text}**"
    if not ours or not value or row.figure == "fairness.factor":
        return text
    return f"{text} ({(ours / value if row.more_is_better else value / ours):,.3g}×)"


def lower_bound(result: Result, row: Row, server: str) -> str:
    """≥ where wrk used up its own core: the server could have given more."""
    load_cpu = result.median(server, row.figure.replace(".rps", ".load_cpu")) if row.figure.endswith(".rps") else None
    return "≥ " if load_cpu and load_cpu >= SATURATED else ""


def markdown(result: Result) -> str:
    """The whole report: table, machine, versions, what went wrong."""
    return "\n\n".join(["# Pilotlight beside its peers", table(result), conditions(result), *notes(result)]) + "\n"


def conditions(result: Result) -> str:
    machine = result.machine
    where = ", ".join([machine["cpu"], f"{machine['cores']} cores", machine["memory"], machine["kernel"]])
    pinning = "each server alone on one core, the load on another" if result.pinned else "servers and load unpinned"
    how = f"{pinning}; medians of {result.rounds} rounds of {result.seconds:g} s each"
    versions = ", ".join([*result.versions.values(), f"Python {machine['python']}"])
    ratio = "In brackets: how many times better Pilotlight is (below 1: the peer is better)"
    return f"{result.date[:10]}, {where}; {how}. {versions}. {ratio}; ≥: the load generator was the limit."


def notes(result: Result) -> list[str]:
    """What a reader must know before trusting the figures."""
    full_load = [(server, result.median(server.name, "json.c32.server_cpu")) for server in SERVERS]
    starved = [f"{server.title} {share:.0%}" for server, share in full_load if share is not None and share < STARVED]
    busy = f"Something else ran on this machine: of its core at 32 connections a server got only: {', '.join(starved)}."
    return [*([busy] if starved else []), *_failures(result)]


def readme_section(result: Result, stem: str) -> str:
    picture = f"![Requests per second, time to ready and memory of each server](bench/results/{stem}.svg)"
    return "\n\n".join([START_MARK, table(result, headline=True), conditions(result), picture, END_MARK])


def write_readme(readme: Path, results: Path) -> Path:
    """Puts the newest result between the markers of the README; returns the file it was read from."""
    newest = newest_result(results)
    result = Result.from_dict(json.loads(newest.read_text()))
    text = readme.read_text() if readme.exists() else ""
    before, start, rest = text.partition(START_MARK)
    _, end, after = rest.partition(END_MARK)
    if not start or not end:
        raise BenchError(f"{readme.name} has no {START_MARK} … {END_MARK}: put both where the table belongs")
    readme.write_text(before + readme_section(result, newest.stem) + after)
    return newest


def newest_result(results: Path) -> Path:
    dated = [(document["date"], path) for path, document in _documents(results)]
    if not dated:
        raise BenchError(f"no result in {results.name}: run `make bench` first")
    return max(dated)[1]


def _documents(results: Path) -> Sequence[tuple[Path, dict[str, str]]]:
    """Other benchmarks keep their results in the same folder; only ours say `peers`."""
    found = [(path, json.loads(path.read_text())) for path in sorted(results.glob("*.json"))]
    return [(path, doc) for path, doc in found if isinstance(doc, dict) and doc.get("benchmark") == BENCHMARK]


def _failures(result: Result) -> list[str]:
    return ["\n".join(["Not measured:", *(f"- {failure}" for failure in result.failures)])] if result.failures else []
