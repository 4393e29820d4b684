"""How cost grows: the arithmetic of curves, the common way of measuring, and their pictures; no server is started."""

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from bench.environments import own_environment
from bench.growth import rendering, services_at_zero
from bench.growth.__main__ import concerning, parser, redraw, whole, write
from bench.growth.axes import AXES
from bench.growth.curves import Axis, Growth, Panel, Point, Setup, measure, outcome
from bench.growth.fit import each, exponent, kept, line, most, power
from bench.growth.report import gallery, markdown, sentences, table
from bench.load import BenchError, Load
from bench.machine import Cores
from bench.servers import SERVERS
from bench.subject import Subject

MACHINE = {"cpu": "A CPU", "cores": "2", "arch": "x86_64", "load_before": "0.10"}
SETUP = Setup(Path(), Cores(None, None), 1.0)


def grown(axis: str = "memory") -> Growth:
    made = Growth(axis, "2030-01-02T03:04:05+00:00", dict(MACHINE), AXES[axis].command, 1.0)
    for count in (1, 10, 100):
        made.add("pilotlight", Point(count, {panel.figure: 60 + 0.5 * count for panel in AXES[axis].panels}))
    return made


def test_a_line_and_a_power_are_found_again() -> None:
    assert line([(x, 3 + 2 * x) for x in (1, 10, 100)]) == pytest.approx((3, 2))
    assert exponent([(x, 5 * x**1.5) for x in (1, 10, 100)]) == pytest.approx(1.5)


def test_one_point_has_no_slope() -> None:
    assert line([(4, 7)]) == (7, 0)


def test_curves_are_told_in_words() -> None:
    assert kept("requests/s")([(1, 200), (1000, 150)]) == "requests/s: 200 at 1, 150 at 1,000 (0.75×)"
    assert most("MB/s")([(1, 10), (2, 900), (4, 800)]) == "MB/s: peak 900 at 2, 800 at 4"
    assert each("memory", "MB")([(1, 60.5), (101, 110.5)]) == "memory: 60 MB plus 0.5 MB for each"


def test_a_power_leaves_out_where_the_fixed_cost_rules() -> None:
    points = [(count, 5 + 0.01 * count) for count in (1, 10, 10_000, 100_000, 1_000_000)]
    assert power("CPU", "s")(points).endswith("10,005 s at 1,000,000, growing as n^1.00")


def subject() -> Subject:
    return Subject(SERVERS[0], own_environment(), {}, {}, Path(), Cores(None, None))


def test_a_server_that_fails_keeps_its_points_and_is_named() -> None:
    def failing(setup: Setup, _: Subject) -> Iterator[Point]:
        yield Point(1, {"rps": 5.0})
        raise BenchError("no room for 10")

    axis = Axis("tried", "a try", "tries", (Panel("rps", "requests/s", kept("rps")),), failing)
    growth = replace(grown(), curves={}, failures=[])
    measure(axis, [subject()], SETUP, growth)
    assert growth.curves == {"rps": {"pilotlight": [(1, 5.0)]}}
    assert growth.failures == ["Pilotlight: no room for 10"]
    assert "load_after" in growth.machine


def test_a_server_that_an_axis_does_not_name_is_left_out() -> None:
    def never(setup: Setup, _: Subject) -> Iterator[Point]:
        raise AssertionError("it was measured")

    growth = replace(grown(), curves={})
    measure(Axis("tried", "", "", (), never, servers=("triton",)), [subject()], SETUP, growth)
    assert growth.curves == {}


def refusing(errors: int) -> Growth:
    """One point at which so many of 10,000 requests failed."""

    def measured(setup: Setup, _: Subject) -> Iterator[Point]:
        load = Load(rps=10_000.0 - errors, p50_ms=1, p99_ms=2, errors=errors, answers=10_000 - errors)
        yield Point(64, {"rps": load.rps, "p99_ms": load.p99_ms, **outcome(load)})

    growth = replace(grown("connections"), curves={}, failures=[])
    measure(replace(AXES["connections"], measure=measured), [subject()], SETUP, growth)
    return growth


@pytest.mark.parametrize(
    ("errors", "failures", "head", "row"),
    [
        (0, [], "| | connections | requests/s | p99, ms |", "| Pilotlight | 64 | 10,000 | 2 |"),
        (10, [], "| | connections | requests/s | p99, ms | failed |", "| Pilotlight | 64 | 9,990 | 2 | 10 |"),
        (
            11,
            ["Pilotlight: 11 of 10,000 requests failed at 64 connections"],
            "| | connections | requests/s | p99, ms | failed |",
            "| Pilotlight | 64 | 9,989 | 2 | 11 |",
        ),
    ],
)
def test_requests_that_failed_are_shown_and_many_are_a_failure(
    errors: int, failures: list[str], head: str, row: str
) -> None:
    growth = refusing(errors)
    assert growth.failures == failures
    assert table(growth).splitlines()[0] == head
    assert table(growth).splitlines()[-1] == row


@pytest.mark.parametrize(
    ("axis", "words", "failures", "kept"),
    [
        ("connections", [], [], True),
        ("connections", ["--seconds", "2"], [], True),
        ("connections", ["--seconds", "0.5"], [], False),  # too short
        ("connections", ["--quick"], [], False),
        ("connections", ["--only", "pilotlight"], [], False),  # peers are missing
        ("rendering", ["--only", "pilotlight"], [], True),  # it has none
        ("connections", [], ["Triton: no wheel"], False),
    ],
)
def test_only_a_whole_axis_without_failures_is_kept(
    axis: str, words: list[str], failures: list[str], kept: bool
) -> None:
    growth = replace(grown(axis), failures=failures)
    assert whole(AXES[axis], growth, parser().parse_args(words)) is kept


def test_a_peer_that_is_missing_fails_only_the_axes_that_have_it() -> None:
    missing = ["MLServer could not be installed: no wheel"]
    assert concerning(AXES["connections"], missing) == missing
    assert concerning(AXES["tensor-size"], missing) == concerning(AXES["rendering"], missing) == []


def test_quick_takes_two_steps() -> None:
    assert replace(SETUP, quick=True).steps((1, 10, 100)) == (1, 10)
    assert SETUP.steps((1, 10, 100)) == (1, 10, 100)


def test_a_growth_survives_being_written_and_read(tmp_path: Path) -> None:
    made = grown()
    stem = write(made, tmp_path)
    assert stem.name == "2030-01-02-x86_64-2core-growth-memory"
    assert Growth.from_dict(json.loads(stem.with_suffix(".json").read_text())) == made


@pytest.mark.parametrize("axis", AXES)
def test_every_axis_has_a_picture_whose_caption_is_its_command(axis: str, tmp_path: Path) -> None:
    stem = write(grown(axis), tmp_path)
    words = "".join(ElementTree.parse(stem.with_suffix(".svg")).getroot().itertext())
    assert f"python -m bench.growth --axes {axis}" in words
    assert "2030-01-02" in words
    assert "A CPU" in words
    assert all(panel.title in words for panel in AXES[axis].panels)


def test_a_curve_rises_in_its_picture_where_its_points_do(tmp_path: Path) -> None:
    rising = write(grown("rendering"), tmp_path).with_suffix(".svg").read_bytes()
    assert rising == redrawn(tmp_path)
    flat = replace(grown("rendering"), curves={"cpu_s": {"pilotlight": [(1.0, 5.0), (100.0, 5.0)]}})
    assert write(flat, tmp_path).with_suffix(".svg").read_bytes() != rising


def redrawn(folder: Path) -> bytes:
    picture = folder / "2030-01-02-x86_64-2core-growth-rendering.svg"
    picture.unlink()
    redraw(folder)
    return picture.read_bytes()


def test_a_page_has_sentences_points_command_and_what_failed() -> None:
    made = grown()
    made.failures.append("Triton: no wheel")
    text = markdown(made, "stem")
    assert "- memory: 60 MB plus 0.5 MB for each" in text
    assert "| Pilotlight | 100 | 110 | 110 |" in text
    assert "`python -m bench.growth --axes memory`, 2030-01-02" in text
    assert "- Triton: no wheel" in text


def test_the_gallery_links_each_picture() -> None:
    text = gallery([("stem-memory", grown()), ("stem-services", grown("services"))])
    assert "](../bench/results/stem-memory.svg)" in text
    assert "](../bench/results/stem-services.md)" in text


def test_every_thing_there_can_be_more_of_has_its_axis() -> None:
    assert list(AXES) == ["connections", "tensor-size", "batch-size", "models", "memory", "services", "rendering"]
    assert (services_at_zero.STEPS[0], services_at_zero.STEPS[-1]) == (1, 1000)
    assert (rendering.STEPS[0], rendering.STEPS[-1]) == (1, 10_000)
    assert all(sentences(grown(name)) for name in AXES)
