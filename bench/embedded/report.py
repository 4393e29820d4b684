"""The result as people read it: each figure beside what was promised of it."""

from dataclasses import dataclass

from bench.rounds import Result

SUBJECT = "embedded"


@dataclass(frozen=True, slots=True)
class Row:
    """A figure, and the bound that we hold ourselves to, if there is one."""

    figure: str
    label: str
    digits: int = 2
    promise: float | None = None
    more_is_better: bool = False

    def kept(self, value: float) -> bool:
        return self.promise is None or (value >= self.promise if self.more_is_better else value <= self.promise)


ROWS: tuple[Row, ...] = (
    Row("direct.c1.p50_ms", "direct to the replica, 1 connection: p50 ms", 3),
    Row("gateway.c1.p50_ms", "through the gateway, 1 connection: p50 ms", 3),
    Row("gateway.added_p50_ms", "added by the gateway: p50 ms", 3, 0.3),
    Row("direct.c32.rps", "direct to the replica, 32 connections: requests/s", 0),
    Row("gateway.c32.rps", "through the gateway, 32 connections: requests/s", 0),
    Row("gateway.kept_percent", "throughput kept by the gateway: %", 0, 60, True),
    Row("cold.plain_s", "cold start, 0 → first byte: s", 3, 0.5),
    Row("cold.pilot_s", "the same with the pilot light: s", 3, 0.25),
    Row("cold.pilot_light_mb", "memory of the pilot light: MB", 0),
    Row("cold.plain_replica_mb", "private memory of a replica: MB", 0),
    Row("cold.pilot_replica_mb", "the same, forked by the pilot light: MB", 0),
    Row("deploy.ready_s", "`platformctl deploy` → Ready: s", 2, 1.5),
    Row("zero.none_mb", "memory of control process and gateway, no service: MB", 0),
    Row("zero.services", "services at zero", 0),
    Row("zero.memory_mb", "memory of both with them: MB", 0, 150),
    Row("zero.cpu_percent", "CPU of both meanwhile: % of a core", 2, 1),
    Row("crowd.services", "services under load at once", 0),
    Row("crowd.fairness", "fairness between them: Jain's index", 3, 0.95, True),
    Row("crowd.least_percent", "lowest throughput of one, of an equal share: %", 0, 80, True),
    Row("crowd.rps", "all of them: requests/s", 0),
    Row("cli.help_s", "`platformctl --help`: s", 2),
    Row("cli.render_s", "`platformctl render` of one service: s", 2),
    Row("cli.render_thousand_s", "`platformctl render` of 1,000 services: s", 2),
)

HEADLINES: tuple[tuple[str, str], ...] = (
    ("cold start of an ONNX service, request → first byte, with the pilot light", "**{0[cold.pilot_s]:.3f} s**"),
    ("the same without the pilot light (a new process)", "{0[cold.plain_s]:.3f} s"),
    ("`platformctl deploy` → Ready", "{0[deploy.ready_s]:.2f} s"),
    ("latency added by the gateway, p50", "{0[gateway.added_p50_ms]:.2f} ms"),
    (
        "throughput through the gateway, of the {0[direct.c32.rps]:,.0f} requests/s of a one-core predictor",
        "{0[gateway.kept_percent]:.0f} %",
    ),
    (
        "{0[zero.services]:.0f} services at zero: platform without the pilot light",
        "{0[zero.memory_mb]:.0f} MB, {0[zero.cpu_percent]:.2f} % of a core",
    ),
)


def headlines(result: Result, link: str) -> str:
    """The short table of docs/benchmarks.md; `link` leads to the rest."""
    medians = {figure: result.median(SUBJECT, figure) for figure in result.samples[SUBJECT]}
    lines = ["| | measured |", "|---|---:|"]
    lines += [f"| {label.format(medians)} | {value.format(medians)} |" for label, value in HEADLINES]
    where = f"{result.date[:10]}, {result.machine['cpu']}, {result.machine['cores']} cores"
    return "\n\n".join(["\n".join(lines), f"{where}; [all figures]({link})."])


def table(result: Result) -> str:
    """Medians; the last column says what they are held to."""
    lines = ["| | **measured** | min … max | target |", "|---|---:|---:|---:|"]
    lines += [line(result, row, value) for row in ROWS if (value := result.median(SUBJECT, row.figure)) is not None]
    return "\n".join([*lines, f"| failed requests | {result.errors(SUBJECT):,} | | 0 |"])


def line(result: Result, row: Row, value: float) -> str:
    samples = result.samples[SUBJECT][row.figure]
    spread = f"{min(samples):,.{row.digits}f} … {max(samples):,.{row.digits}f}" if len(samples) > 1 else ""
    bound = "" if row.promise is None else f"{'≥' if row.more_is_better else '≤'} {row.promise:g}"
    missed = "" if row.kept(value) else " (missed)"
    return f"| {row.label} | **{value:,.{row.digits}f}** | {spread} | {bound}{missed} |"


def missed(result: Result) -> list[str]:
    medians = ((row, result.median(SUBJECT, row.figure)) for row in ROWS)
    return [row.label for row, value in medians if value is not None and not row.kept(value)]


def markdown(result: Result) -> str:
    failures = ["\n".join(["Not measured:", *(f"- {failure}" for failure in result.failures)])] * bool(result.failures)
    return "\n\n".join(["# The embedded platform", table(result), conditions(result), *failures]) + "\n"


def conditions(result: Result) -> str:
    machine = result.machine
    where = ", ".join([machine["cpu"], f"{machine['cores']} cores", machine["memory"], machine["kernel"]])
    pinning = "the replica alone on one core, gateway and load on another" if result.pinned else "nothing pinned"
    load = f"load average before: {machine['load_before']}, after: {machine.get('load_after', 'not noted')}"
    return (
        f"{result.date[:10]}, {where}, Python {machine['python']}, {load}; "
        f"medians; for the gateway {pinning}, {result.rounds} rounds of {result.seconds:g} s."
    )
