"""The picture of the autoscalers: requests in flight and replicas over time, the local one beside each real one."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.cluster.report import TITLES
from bench.cluster.trace import Piece, in_flight, length
from bench.plot import FAINT, drawing, plain, save

Json = Any
LOCAL: Final = "#e4572e"
REAL: Final = "#4c78a8"


def draw(trace: Sequence[Piece], scaling: Mapping[str, Mapping[str, Mapping[str, Json]]], path: Path) -> None:
    """The same figures give the same bytes."""
    with drawing() as pyplot:
        rows = 1 + len(scaling)
        figure, axes = pyplot.subplots(rows, 1, figsize=(9, 2 * rows), sharex=True, squeeze=False, layout="constrained")
        _requests(axes[0][0], trace)
        for axis, both in zip(axes[1:, 0], scaling.values(), strict=True):
            _replicas(axis, both)
        axes[-1][0].set_xlabel("seconds")
        save(figure, path)


def _requests(axis: Any, trace: Sequence[Piece]) -> None:
    seconds = [step / 4 for step in range(round(4 * length(trace)))]
    axis.fill_between(seconds, [in_flight(trace, at) for at in seconds], color=FAINT)
    _titled(axis, "requests in flight")


def _replicas(axis: Any, both: Mapping[str, Mapping[str, Json]]) -> None:
    """Lines are what is wanted; what is ready lies below them as an area."""
    for name, row in both.items():
        colour = LOCAL if name.startswith("local") else REAL
        seconds = range(len(row["wanted"]))
        axis.step(seconds, row["wanted"], where="post", color=colour, linewidth=1.6, label=TITLES[name])
        axis.fill_between(seconds, row["ready"], step="post", color=colour, alpha=0.15, linewidth=0)
    axis.legend(frameon=False, loc="upper left", fontsize=8.5)
    _titled(axis, "replicas wanted (area: ready)")


def _titled(axis: Any, title: str) -> None:
    axis.set_title(title, loc="left", fontsize=10, fontweight="bold")
    axis.set_ylim(bottom=0)
    axis.yaxis.grid(True, color=FAINT, linewidth=0.7)
    plain(axis)
