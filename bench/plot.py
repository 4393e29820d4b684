"""The picture of a result: requests per second, time to ready and idle memory, one colour per server."""

from pathlib import Path
from typing import Any

from bench.rounds import Result
from bench.servers import SERVERS

COLOURS = {"pilotlight": "#e4572e", "kserve": "#4c78a8", "mlserver": "#8e9aaf", "triton": "#6a994e"}
OTHER = "#b0a99f"
INK, FAINT = "#2b2b2b", "#d9d9d9"
GROUPS = (
    ("json.c1.rps", "JSON\n1 connection"),
    ("json.c32.rps", "JSON\n32 connections"),
    ("json.c256.rps", "JSON\n256 connections"),
    ("binary.c1.rps", "602 KB tensor\n1 connection"),
    ("binary.c8.rps", "602 KB tensor\n8 connections"),
)


def draw(result: Result, path: Path) -> None:
    """Writes the picture in the format of the path's suffix; the same result gives the same bytes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    ink = {"text.color": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK}
    style: dict[Any, Any] = {"font.size": 9, "svg.hashsalt": "bench", "svg.fonttype": "none", **ink}
    with pyplot.rc_context(style):
        figure, axes = pyplot.subplots(1, 3, figsize=(12, 4), width_ratios=(3.4, 1, 1), layout="constrained")
        _throughput(axes[0], result)
        _bars(axes[1], result, "start.ready_s", "exec → model ready, s", "{:.2f}")
        _bars(axes[2], result, "memory.idle_mb", "idle memory, MB", "{:.0f}")
        metadata = {"Date": None} if path.suffix == ".svg" else {}
        figure.savefig(path, dpi=160, facecolor="white", metadata=metadata)
        pyplot.close(figure)


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
    _plain(axis)


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
    _plain(axis)
    axis.spines["bottom"].set_visible(False)


def _plain(axis: Any) -> None:
    axis.set_axisbelow(True)
    axis.tick_params(length=0)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    axis.spines["bottom"].set_color(FAINT)


def _short(value: float) -> str:
    return f"{value / 1000:.1f}k" if value >= 1000 else f"{value:.0f}"
