"""A result as a page: the markdown table with ratios, targets, and the conditions of the run."""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.promises import promises
from bench.rounds import Result
from bench.servers import OURS, SERVERS

SATURATED = 0.97  # share of its core from which on wrk is the limit
STARVED = 0.8  # share of its core below which a server under full load was disturbed by something else


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a figure, how it is shown, and whether more of it is better."""

    figure: str
    label: str
    more_is_better: bool = False
    digits: int = 2
    headline: bool = True  # also in the short table of docs/benchmarks.md


ROWS: tuple[Row, ...] = (
    *(
        row
        for figure, what in (
            ("c1", "1 connection"),
            ("c32", "32 connections"),
            ("id", "32 connections, unique request ids"),
            ("c256", "256 connections"),
        )
        for row in (
            Row(f"json.{figure}.rps", f"JSON, {what}: requests/s", True, 0),
            Row(f"json.{figure}.p50_ms", f"JSON, {what}: p50 ms", headline=False),
            Row(f"json.{figure}.p99_ms", f"JSON, {what}: p99 ms"),
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
    *(
        row
        for figure, what in (
            ("r1c1", "1 row, 1 connection"),
            ("r1c8", "1 row, 8 connections"),
            ("r8c8", "8 rows, 8 connections"),
        )
        for row in (
            Row(f"grpc.{figure}.rps", f"gRPC, {what}: calls/s", True, 0),
            Row(f"grpc.{figure}.p99_ms", f"gRPC, {what}: p99 ms", headline=False),
            Row(f"grpc.{figure}.cpu_us", f"gRPC, {what}: server CPU, µs per call", digits=0, headline=False),
        )
    ),
    Row("big.c1.mb_s", "10 MB tensor, 1 connection: MB/s", True, 0),
    Row("big.sink_mb_s", "the same into a program that only reads its socket: MB/s", True, 0, headline=False),
    Row("big.copy_mb_s", "one copy of 10 MB in memory: MB/s", True, 0, headline=False),
    Row("copies.messages", "19 MB by gRPC: peak memory as a multiple of the message", headline=False),
    Row("start.ready_s", "exec → model ready: s"),
    Row("memory.idle_mb", "idle memory: MB", digits=0),
    Row("fairness.beside_p50_ms", "second model during a flood on the first: p50 ms", headline=False),
    Row("fairness.alone_p99_ms", "second model alone: p99 ms", headline=False),
    Row("fairness.beside_p99_ms", "second model during a flood on the first: p99 ms"),
    Row("fairness.factor", "increase of that p99 by the flood: ×", digits=1, headline=False),
    Row("crowd.alone_p99_ms", "one connection alone: p99 ms", headline=False),
    Row("crowd.beside_p99_ms", "one connection, 256 others on its model: p99 ms"),
    Row("crowd.factor", "increase of that p99: ×", digits=1, headline=False),
    *(
        Row(f"workers.r{rows}.n{count}.rps", f"`--workers {count}`, all cores, {what}: requests/s", True, 0, False)
        for rows, what in ((1, "1 row"), (64, "64 rows"))
        for count in (1, 2)
    ),
    *(
        Row(f"python_client.{load}.{client}_rps", f"{title}, {what}: requests/s", True, 0, False)
        for load, what in (("iris.c1", "1 caller"), ("iris.c32", "32 callers"), ("image.c8", "602 KB, 8 callers"))
        for client, title in (
            ("pilotlight", "AsyncClient"),
            ("triton", "tritonclient.http"),
            ("triton_aio", "tritonclient.http.aio"),
        )
    ),
    *(
        row
        for name, title in (("sklearn", "scikit-learn"), ("xgboost", "XGBoost"), ("lightgbm", "LightGBM"))
        for row in (
            Row(f"tables.{name}.rps", f"{title}, 32 connections: requests/s", True, 0),
            Row(f"tables.{name}.p99_ms", f"{title}, 32 connections: p99 ms", headline=False),
            Row(f"tables.{name}.ready_s", f"{title}, exec → model ready: s", headline=False),
        )
    ),
    *(
        row
        for name, title in (("bert-tiny", "BERT, 4 M weights"), ("minilm", "MiniLM, 22 M weights"))
        for row in (
            Row(f"huggingface.{name}.best_rps", f"{title}, text-classification, 32 connections: requests/s", True, 0),
            Row(
                f"huggingface.{name}.loop_rps",
                f"{title}, loop over batches, no server: texts/s",
                True,
                0,
                False,
            ),
            Row(f"huggingface.{name}.p99_ms", f"{title}, 32 connections: p99 ms", headline=False),
            Row(f"huggingface.{name}.ready_s", f"{title}, exec → model ready: s", headline=False),
        )
    ),
)


HEADLINES = tuple(row for row in ROWS if row.headline)


def table(result: Result, rows: Sequence[Row] = ROWS) -> str:
    counts = [f"{result.errors(server.name):,}" for server in SERVERS if server.name in result.samples]
    return "\n".join([side_by_side(result, rows), f"| failed requests | {' | '.join(counts)} |"])


def side_by_side(result: Result, rows: Sequence[Row]) -> str:
    """One column per server; a peer's cell ends with how many times better ours is (below 1: theirs is better)."""
    servers = [server for server in SERVERS if server.name in result.samples]
    lines = ["| | " + " | ".join(f"**{server.title}**" for server in servers) + " |", "|---|" + "---:|" * len(servers)]
    for row in rows:
        if any(result.median(s.name, row.figure) for s in servers):
            cells = [cell(result, row, server.name) for server in servers]
            lines.append(f"| {row.label} | " + " | ".join(cells) + " |")
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
    if not ours or not value or row.figure.endswith(".factor"):
        return text
    return f"{text} ({(ours / value if row.more_is_better else value / ours):,.3g}×)"


def lower_bound(result: Result, row: Row, server: str) -> str:
    """≥ where wrk used up its own core: the server could have given more."""
    load_cpu = result.median(server, row.figure.replace(".rps", ".load_cpu")) if row.figure.endswith(".rps") else None
    return "≥ " if load_cpu and load_cpu >= SATURATED else ""


def markdown(result: Result) -> str:
    """The whole report: table, targets, machine, versions, failures."""
    parts = ["# Pilotlight and its peers", table(result), conditions(result), *notes(result)]
    return "\n\n".join([*parts, "## Targets", promises(result)]) + "\n"


def conditions(result: Result) -> str:
    machine = result.machine
    where = ", ".join([machine["cpu"], f"{machine['cores']} cores", machine["memory"], machine["kernel"]])
    pinning = "each server alone on one core, the load on another" if result.pinned else "servers and load unpinned"
    how = f"{pinning}; medians of {result.rounds} rounds of {result.seconds:g} s each"
    versions = ", ".join([*result.versions.values(), f"Python {machine['python']}"])
    ratio = "In parentheses: Pilotlight's advantage as a factor (below 1: the peer is better)"
    limit = "≥: limited by the load generator"
    return f"{result.date[:10]}, {where}{loads(machine)}; {how}. {versions}. {ratio}; {limit}."


def loads(machine: dict[str, str]) -> str:
    """The load average before and after, of which a run itself is a part after."""
    before, after = machine.get("load_before"), machine.get("load_after")
    return f", load average {before} before and {after} after" if before and after else ""


def notes(result: Result) -> list[str]:
    """What a reader must know before trusting the figures."""
    full_load = [(server, result.median(server.name, "json.c32.server_cpu")) for server in SERVERS]
    starved = [f"{server.title} {share:.0%}" for server, share in full_load if share is not None and share < STARVED]
    busy = f"Something else ran on this machine: of its core at 32 connections a server got only: {', '.join(starved)}."
    return [*([busy] if starved else []), *_failures(result)]


def _failures(result: Result) -> list[str]:
    return ["\n".join(["Not measured:", *(f"- {failure}" for failure in result.failures)])] if result.failures else []
