"""Pictures: of a result (requests per second, time to ready, idle memory) and of curves, one colour per server."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.rounds import Result
from bench.servers import SERVERS

COLOURS = {"pilotlight": "#e4572e", "kserve": "#4c78a8", "mlserver": "#8e9aaf", "triton": "#6a994e"}
OTHER = "#b0a99f"
INK, FAINT = "#2b2b2b", "#d9d9d9"
WIDE = 30  # from the least to the most of a panel: beyond it a scale that begins at zero hides the least
GROUPS = (
    ("json.c1.rps", "JSON\n1 connection"),
    ("json.c32.rps", "JSON\n32 connections"),
    ("json.c256.rps", "JSON\n256 connections"),
    ("binary.c1.rps", "602 KB tensor\n1 connection"),
    ("binary.c8.rps", "602 KB tensor\n8 connections"),
)


def draw(result: Result, path: Path) -> None:
    """Writes the picture in the format of the path's suffix; the same result gives the same bytes."""
    with drawing() as pyplot:
        figure, axes = pyplot.subplots(1, 3, figsize=(12, 4), width_ratios=(3.4, 1, 1), layout="constrained")
        _throughput(axes[0], result)
        _bars(axes[1], result, "start.ready_s", "exec → model ready, s", "{:.2f}")
        _bars(axes[2], result, "memory.idle_mb", "idle memory, MB", "{:.0f}")
        save(figure, path)


@dataclass(frozen=True, slots=True)
class Curves:
    """One panel: a line of points for each name of a server, or of anything else."""

    title: str
    lines: Mapping[str, Sequence[tuple[float, float]]]


@dataclass(frozen=True, slots=True)
class Sheet:
    """Panels that share their x, which grows by factors; the caption says what made them."""

    title: str
    x_label: str
    caption: str
    panels: Sequence[Curves]


def draw_sheet(sheet: Sheet, path: Path) -> None:
    """As `draw` does, the same sheet gives the same bytes."""
    with drawing() as pyplot:
        columns = max(len(sheet.panels), 1)
        figure, axes = pyplot.subplots(
            1, columns, figsize=(1 + 3.7 * columns, 3.6), squeeze=False, layout="constrained"
        )
        for axis, panel in zip(axes[0], sheet.panels, strict=False):
            _curves(axis, panel, sheet.x_label)
        figure.suptitle(sheet.title, x=0.01, ha="left", fontsize=11, fontweight="bold")
        figure.supxlabel(sheet.caption, x=0.01, ha="left", fontsize=7, color=OTHER)
        save(figure, path)


def _curves(axis: Any, panel: Curves, x_label: str) -> None:
    for name, points in panel.lines.items():
        xs, ys = [x for x, _ in points], [y for _, y in points]
        axis.plot(xs, ys, marker="o", markersize=3.5, linewidth=1.8, color=COLOURS.get(name.lower(), OTHER), label=name)
        axis.annotate(_short(ys[-1]), (xs[-1], ys[-1]), (3, 3), textcoords="offset points", fontsize=7.5, color=INK)
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(lambda value, _: _short(value))
    axis.margins(x=0.12, y=0.12)
    _scale(axis, [y for points in panel.lines.values() for _, y in points])
    axis.set_xlabel(x_label)
    axis.set_title(panel.title, loc="left", fontsize=9.5)
    axis.minorticks_off()
    if len(panel.lines) > 1:
        axis.legend(frameon=False, fontsize=8)
    axis.yaxis.grid(True, which="major", color=FAINT, linewidth=0.7)
    plain(axis)


def _scale(axis: Any, values: Sequence[float]) -> None:
    """From zero on, so that a curve which hardly rises looks so; by factors where much would hide little."""
    if min(values) > 0 and max(values) >= WIDE * min(values):
        axis.set_yscale("log")
    else:
        axis.set_ylim(bottom=0)
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.3g}" if value < 1000 else f"{value:,.0f}")


@contextlib.contextmanager
def drawing() -> Iterator[Any]:
    """pyplot with the look of all our pictures, which are drawn without a screen."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    ink = {"text.color": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK}
    style: dict[Any, Any] = {"font.size": 9, "svg.hashsalt": "bench", "svg.fonttype": "none", **ink}
    with pyplot.rc_context(style):
        yield pyplot
        pyplot.close("all")


def save(figure: Any, path: Path) -> None:
    metadata = {"Date": None} if path.suffix == ".svg" else {}
    figure.savefig(path, dpi=160, facecolor="white", metadata=metadata)


def _throughput(axis: Any, result: Result) -> None:
    groups = [group for group in GROUPS if any(result.median(s.name, group[0]) for s in SERVERS)]
    servers = [server for server in SERVERS if server.name in result.samples]
    width = 0.84 / max(len(servers), 1)
    for index, server in enumerate(servers):
        drawn = [(at, result.median(server.name, figure)) for at, (figure, _) in enumerate(groups)]
        known = [(at - 0.42 + (index + 0.5) * width, value) for at, value in drawn if value]
        colour = COLOURS.get(server.name, OTHER)
        bars = axis.bar([x for x, _ in known], [y for _, y in known], width * 0.92, color=colour, label=server.title)
        axis.bar_label(bars, [_short(y) for _, y in known], padding=2, fontsize=7.5, color=INK)
        for at in (at for at, value in drawn if not value):
            place = (at - 0.42 + (index + 0.5) * width, 0.01)
            axis.annotate("–", place, xycoords=("data", "axes fraction"), ha="center", color=colour)
    if groups:
        axis.set_yscale("log")
        axis.minorticks_off()
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axis.set_xticks(range(len(groups)), [label for _, label in groups])
    axis.set_title("requests per second on one core (log scale)", loc="left", fontsize=10, fontweight="bold")
    axis.legend(frameon=False, ncols=len(servers) or 1, loc="upper right", fontsize=8.5)
    axis.margins(y=0.16)
    axis.yaxis.grid(True, which="major", color=FAINT, linewidth=0.7)
    plain(axis)


def _bars(axis: Any, result: Result, figure: str, title: str, form: str) -> None:
    measured = [(server, result.median(server.name, figure)) for server in SERVERS]
    known = [(server, value) for server, value in measured if value]
    colours = [COLOURS.get(server.name, OTHER) for server, _ in known]
    bars = axis.barh([server.title for server, _ in known], [value for _, value in known], 0.62, color=colours)
    axis.bar_label(bars, [form.format(value) for _, value in known], padding=3, fontsize=8.5, color=INK)
    axis.invert_yaxis()
    axis.margins(x=0.22)
    axis.set_xticks([])
    axis.set_title(title, loc="left", fontsize=10, fontweight="bold")
    plain(axis)
    axis.spines["bottom"].set_visible(False)


def plain(axis: Any) -> None:
    """No frame but the line that values stand on."""
    axis.set_axisbelow(True)
    axis.tick_params(length=0)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    axis.spines["bottom"].set_color(FAINT)


def _short(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:.3g}M"
    if value >= 1000:
        return f"{value / 1000:.1f}k".replace(".0k", "k")
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.2g}"
