"""Pictures of simulations: SVG and PNG by matplotlib, and an HTML page that needs nothing else.

One simulation is drawn over time; several are compared, with the Pareto front of cost against p99. SVG and page follow
the reader's light or dark scheme.
"""

import html
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pilotlight.errors import PlatformError, UsageError
from pilotlight.simulation.result import Simulation
from pilotlight.wire.environments.install_command import install_command

SUFFIXES: Final = (".svg", ".png", ".html")
COLOURS: Final = (
    "#0a7abf",
    "#d55e00",
    "#009e73",
    "#b8559a",
    "#c08a00",
    "#6b6ecf",
    "#8c6d46",
    "#5f8f9f",
)  # on both schemes
INK, FAINT, PAPER = "#26282b", "#d5d7da", "#ffffff"
DARK: Final = {INK: "#dfe1e4", FAINT: "#43474d", PAPER: "#15171a"}
MAX_NAMED: Final = 8  # curves of a comparison that keep their names and colours
LEGEND: Final[dict[str, Any]] = {"fontsize": 8, "loc": "lower right", "bbox_to_anchor": (1.02, 0.99), "ncols": 2}
UNITS: Final = ((86400.0, 3 * 86400.0, "days"), (3600.0, 3 * 3600.0, "hours"), (60.0, 300.0, "minutes"))


def write_plot(simulations: Sequence[Simulation], path: Path) -> None:
    """Write the picture in the format of the path's suffix. Raise UsageError for another one."""
    if path.suffix not in SUFFIXES:
        raise UsageError(f"{path}: a plot is {', '.join(SUFFIXES)}")
    try:
        if path.suffix == ".html":
            path.write_text(page(simulations), encoding="utf-8")
        else:
            path.write_bytes(picture(simulations, path.suffix[1:]))
    except OSError as error:
        raise PlatformError(f"{path} cannot be written: {error.strerror}") from error


def picture(simulations: Sequence[Simulation], kind: str) -> bytes:
    """Return the picture as `svg` or `png`; the same simulations give the same bytes."""
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        raise PlatformError("plots need matplotlib, which is not installed", install_command("plot")) from error
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {
        "font.size": 9, "font.family": "sans-serif", "svg.fonttype": "none", "svg.hashsalt": "simulation",
        "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": FAINT, "xtick.color": INK, "ytick.color": INK,
        "axes.facecolor": PAPER, "figure.facecolor": PAPER, "legend.frameon": False,
    }  # fmt: skip
    buffer = io.BytesIO()
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(12.5, 4.1), layout="constrained")
        axes = figure.subplots(1, 3)
        draw_replicas(axes[0], simulations)
        (draw_latency if len(simulations) == 1 else draw_pareto)(axes[1], simulations)
        draw_distribution(axes[2], simulations)
        if len(simulations) > 1:
            figure.legend(*axes[2].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
        figure.savefig(buffer, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else {})
    return with_scheme(buffer.getvalue()) if kind == "svg" else buffer.getvalue()


def with_scheme(svg: bytes) -> bytes:
    """Return the picture with a style that replaces ink and paper where the reader prefers a dark scheme."""
    rules = "".join(
        f'[style*="{part}: {light}"]{{{part}:{dark}!important}}'
        for light, dark in DARK.items()
        for part in ("fill", "stroke")
    )
    style = f"@media(prefers-color-scheme:dark){{{rules}}}"
    head, mark, rest = svg.decode().partition("<defs>")
    return f"{head}<style>{style}</style>{mark}{rest}".encode()


def unit_of(seconds: float) -> tuple[float, str]:
    """Return the length and name of the unit in which a time axis is readable."""
    return next(((length, name) for length, least, name in UNITS if seconds >= least), (1.0, "seconds"))


def plain(axis: Any, title: str) -> None:
    axis.set_title(title, loc="left", fontsize=10, fontweight="bold")
    axis.set_axisbelow(True)
    axis.grid(True, axis="y", color=FAINT, linewidth=0.6)
    axis.tick_params(length=0, which="both")
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)


def draw_replicas(axis: Any, simulations: Sequence[Simulation]) -> None:
    end = max((each.seconds for each in simulations), default=1.0)
    length, unit = unit_of(end)
    for index, each in enumerate(simulations[:MAX_NAMED]):
        at = [second / length for second, _ in each.replicas] + [end / length]
        counts = [count for _, count in each.replicas] + [each.replicas[-1][1] if each.replicas else 0]
        name = each.name if len(simulations) > 1 else "all"
        axis.step(at, counts, where="post", color=COLOURS[index], linewidth=1.3, label=name)
        if len(simulations) == 1:
            at = [second / length for second, _ in each.ready] + [end / length]
            counts = [count for _, count in each.ready] + [each.ready[-1][1] if each.ready else 0]
            axis.fill_between(at, counts, step="post", color=COLOURS[2], alpha=0.35, linewidth=0, label="ready")
    plain(axis, "Replicas")
    axis.set_xlabel(unit)
    axis.set_ylim(bottom=0)
    axis.yaxis.get_major_locator().set_params(integer=True)
    if len(simulations) == 1:
        axis.legend(**LEGEND)


def draw_latency(axis: Any, simulations: Sequence[Simulation]) -> None:
    (only,) = simulations
    length, unit = unit_of(only.seconds)
    for column, name, colour in ((2, "p99", COLOURS[1]), (1, "p50", COLOURS[0])):
        points = [(row[0] / length, row[column]) for row in only.latency_over_time if row[column] > 0]
        axis.plot([at for at, _ in points], [value for _, value in points], color=colour, linewidth=1.1, label=name)
    plain(axis, "Latency, seconds")
    _seconds_scale(axis, "y")
    _objective(axis.axhline, only)
    axis.set_xlabel(unit)
    axis.legend(**LEGEND)


def draw_distribution(axis: Any, simulations: Sequence[Simulation]) -> None:
    for index, each in enumerate(simulations[:MAX_NAMED]):
        seconds, shares = each.latency.cdf()
        shown = [(second, 100 * share) for second, share in zip(seconds, shares, strict=True) if second > 0]
        style = {"color": COLOURS[index], "linewidth": 1.3, "label": each.name}
        axis.step([second for second, _ in shown], [share for _, share in shown], where="post", **style)
    plain(axis, "Requests answered within, %")
    _seconds_scale(axis, "x")
    if simulations:
        _objective(axis.axvline, simulations[0])
    axis.set_ylim(0, 102)
    axis.set_xlabel("latency, seconds")


def _seconds_scale(axis: Any, which: str) -> None:
    (axis.set_xscale if which == "x" else axis.set_yscale)("log")
    ticks = axis.xaxis if which == "x" else axis.yaxis
    ticks.set_major_formatter(lambda value, _: f"{value:g}")
    ticks.set_minor_formatter("")


def _objective(line: Any, simulation: Simulation) -> None:
    if simulation.slo_seconds is not None:
        line(simulation.slo_seconds, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))


def cost_of(simulations: Sequence[Simulation]) -> tuple[str, list[float]]:
    """Return what the comparison costs: money if prices are known, else GPU-hours, else replica-hours."""
    if any(each.cost for each in simulations):
        return f"cost {simulations[0].prices.currency}".rstrip(), [each.cost for each in simulations]
    if any(each.gpu_seconds for each in simulations):
        return "GPU-hours", [each.gpu_hours for each in simulations]
    return "replica-hours", [each.replica_seconds / 3600 for each in simulations]


def pareto(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the points that no other one beats in both values, by the first."""
    front: list[int] = []
    for index in sorted(range(len(points)), key=lambda each: points[each]):
        if not front or points[index][1] < points[front[-1]][1]:
            front.append(index)
    return front


def draw_pareto(axis: Any, simulations: Sequence[Simulation]) -> None:
    label, costs = cost_of(simulations)
    points = [(cost, each.latency.quantile(0.99)) for cost, each in zip(costs, simulations, strict=True)]
    front = pareto(points)
    axis.plot(*zip(*(points[index] for index in front), strict=True), color=INK, linewidth=0.9, zorder=1)
    for index, point in enumerate(points):
        colour = COLOURS[index] if index < MAX_NAMED else FAINT
        axis.scatter(*point, s=34 if index in front else 18, color=colour, zorder=2)
    plain(axis, f"p99 in seconds by {label}")
    _objective(axis.axhline, simulations[0])
    axis.margins(x=0.2, y=0.18)
    axis.set_ylim(bottom=0)
    axis.set_xlabel(f"{label}; the line is the Pareto front")


STYLE: Final = f"""
:root {{ color-scheme: light dark; --ink: {INK}; --faint: {FAINT}; --paper: {PAPER} }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: {DARK[INK]}; --faint: {DARK[FAINT]}; --paper: {DARK[PAPER]} }}
}}
body {{ font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper) }}
body {{ margin: 2rem auto; max-width: 76rem; padding: 0 1rem }}
h1 {{ font-size: 1.3rem }} svg {{ width: 100%; height: auto }} .table {{ overflow-x: auto }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums }}
th, td {{ text-align: right; padding: .35rem .8rem; border-bottom: 1px solid var(--faint); white-space: nowrap }}
th:first-child, td:first-child {{ text-align: left }} li {{ margin: .2rem 0 }}
"""
COLUMNS: Final = (
    ("requests", "requests", "{:,.0f}"), ("failed", "failed", "{:,.0f}"), ("p50", "p50, s", "{:.3g}"),
    ("p95", "p95, s", "{:.3g}"), ("p99", "p99, s", "{:.3g}"), ("cold_starts", "cold starts", "{:,.0f}"),
    ("max_replicas", "max replicas", "{:.0f}"), ("replica_seconds", "replica-seconds", "{:,.0f}"),
    ("gpu_hours", "GPU-hours", "{:,.2f}"), ("cpu_hours", "CPU-hours", "{:,.2f}"), ("cost", "cost", "{:,.2f}"),
)  # fmt: skip


def page(simulations: Sequence[Simulation]) -> str:
    """Return a page with the picture, the figures and the assumptions; it loads nothing."""
    title = html.escape("Simulation of " + ", ".join(each.name for each in simulations[:3]))
    svg = picture(simulations, "svg").decode()
    head = "".join(f"<th>{name}</th>" for _, name, _ in COLUMNS)
    rows = []
    for each in simulations:
        figures = each.figures()
        cells = "".join(f"<td>{form.format(figures[key])}</td>" for key, _, form in COLUMNS)
        rows.append(f"<tr><td>{html.escape(each.name)}</td>{cells}</tr>")
    notes = dict.fromkeys(f"{each.name}: {note}" for each in simulations for note in each.assumptions)
    listed = "".join(f"<li>{html.escape(note)}</li>" for note in notes)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style><h1>{title}</h1>'
        f"{svg[svg.index('<svg') :]}"
        f'<div class="table"><table><tr><th>service</th>{head}</tr>{"".join(rows)}</table></div>'
        f"{f'<h2>Assumptions</h2><ul>{listed}</ul>' if listed else ''}</html>\n"
    )
