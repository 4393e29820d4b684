"""Pictures of simulations: every format, the Pareto front, and a page that loads nothing."""

from pathlib import Path

import numpy as np
import pytest

from pilotlight.errors import UsageError
from pilotlight.simulation.plot import COLOURS, DARK, INK, pareto, write_plot
from pilotlight.simulation.result import LatencyHistogram, Prices, Simulation


def simulation(name: str, latency: float, hours: float) -> Simulation:
    histogram, empty = LatencyHistogram(), LatencyHistogram()
    histogram.add(np.linspace(latency, 2 * latency, 100))
    return Simulation(
        name, "exact", 7200.0, histogram, empty, empty, histogram, replicas=[(0.0, 0), (60.0, 2)], ready=[(64.0, 2)],
        replica_seconds=3600 * hours, gpu_seconds=3600 * hours, latency_over_time=[(0.0, latency, 2 * latency)],
        assumptions=("cold start 5 s",), prices=Prices(2.0, 0.0, "USD"), slo_seconds=1.0,
    )  # fmt: skip


@pytest.mark.parametrize("count", [1, 3, 12])
def test_one_and_several_simulations_are_drawn_in_every_format(tmp_path: Path, count: int) -> None:
    simulations = [simulation(f"n<{index}>", 0.1 + index, 10 - index) for index in range(count)]
    for suffix in ("svg", "png", "html"):
        write_plot(simulations, tmp_path / f"plot.{suffix}")
    svg = (tmp_path / "plot.svg").read_text()
    assert svg.startswith("<?xml")
    assert ("Pareto front" in svg) == (count > 1)
    assert COLOURS[0] in svg
    assert f"{INK}" in svg
    assert f'prefers-color-scheme:dark){{[style*="fill: {INK}"]{{fill:{DARK[INK]}!important}}' in svg
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "plot.html").read_text()
    assert page.count("<tr>") == count + 1
    assert "n&lt;0&gt;: cold start 5 s" in page
    assert "<script" not in page
    assert "src=" not in page


def test_the_same_simulation_gives_the_same_picture(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        write_plot([simulation("iris", 0.1, 1)], tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_the_pareto_front_has_what_nothing_beats() -> None:
    assert pareto([(1, 9), (2, 5), (3, 6), (4, 1), (2, 7)]) == [0, 1, 3]


def test_another_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"a plot is \.svg, \.png, \.html"):
        write_plot([simulation("iris", 0.1, 1)], tmp_path / "plot.pdf")
