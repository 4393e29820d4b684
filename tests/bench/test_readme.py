"""The figures of README and docs/benchmarks.md are those of the newest results, and one command writes them."""

import json
from pathlib import Path

import pytest
from bench.embedded.report import SUBJECT
from bench.environments import ROOT
from bench.growth.curves import Growth, Point
from bench.load import BenchError
from bench.readme import BENCHMARKS_PAGE, README, Sections, with_figures, write_page
from bench.rounds import Result

MACHINE = {"cpu": "A CPU", "cores": "2", "memory": "8 GiB", "kernel": "Linux 6", "arch": "x86_64", "python": "3.11.7"}
EMBEDDED = (
    "cold.pilot_s", "cold.plain_s", "deploy.ready_s", "gateway.added_p50_ms", "direct.c32.rps", "gateway.kept_percent",
    "zero.services", "zero.memory_mb", "zero.cpu_percent",
)  # fmt: skip
MARKED = "before\n" + "".join(f"<!-- {name}:start -->\nstale\n<!-- {name}:end -->\n" for name in BENCHMARKS_PAGE)
README_LIMIT = 8 * 1024  # bytes: two minutes of reading


@pytest.fixture
def results(tmp_path: Path) -> Path:
    for name, date, rps in (("old", "2030-01-01", 100.0), ("new", "2030-02-01", 200.0)):
        made = Result(date, MACHINE, True, 3.0, 3)
        made.add("pilotlight", {"json.c32.rps": rps})
        (tmp_path / f"{name}.json").write_text(json.dumps(made.to_dict()))
        growth = Growth("rendering", date, dict(MACHINE), "python -m bench.growth --axes rendering", 1.0)
        for count in (1, 10, 100):
            growth.add("pilotlight", Point(count, {"cpu_s": rps * count, "peak_mb": 50}))
        (tmp_path / f"{name}-growth.json").write_text(json.dumps(growth.to_dict()))
    platform = Result("2030-02-01", MACHINE, True, 3.0, 3, benchmark=SUBJECT)
    platform.add(SUBJECT, dict.fromkeys(EMBEDDED, 7.0))
    (tmp_path / "embedded.json").write_text(json.dumps(platform.to_dict()))
    (tmp_path / "other.json").write_text(json.dumps({"benchmark": "gpu", "date": "2031-01-01"}))
    return tmp_path


def test_every_section_shows_the_newest_result_of_its_kind(results: Path) -> None:
    text = with_figures(f"{MARKED}after\n", results, BENCHMARKS_PAGE)
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "stale" not in text
    assert "| JSON, 32 connections: requests/s | **200** |" in text
    assert "](../bench/results/new.svg)" in text
    assert "CPU: 200 s at 1, 20,000 s at 100, growing as n^1.00" in text
    assert "](../bench/results/new-growth.svg)" in text
    assert "`python -m bench.growth --axes rendering`" in text
    assert "[all figures](../bench/results/embedded.md)" in text


def test_the_readme_gets_four_rows_and_one_chart(results: Path) -> None:
    made = Result("2030-03-01", MACHINE, True, 3.0, 3)
    figures = ("json.c1.rps", "json.c32.rps", "grpc.r1c8.rps", "start.ready_s", "memory.idle_mb")
    made.add("pilotlight", dict.fromkeys(figures, 7.0))
    (results / "newest.json").write_text(json.dumps(made.to_dict()))
    text = with_figures("<!-- bench:start --><!-- bench:end -->", results, README)
    assert [line for line in text.splitlines() if "**7" in line] == [
        "| JSON, 32 connections: requests/s | **7.0** |",
        "| gRPC, 1 row, 8 connections: calls/s | **7.0** |",
        "| exec → model ready: s | **7.00** |",
        "| idle memory: MB | **7.0** |",
    ]
    assert text.count("](bench/results/newest.svg)") == 1


def test_writing_twice_changes_nothing(results: Path) -> None:
    page = results / "page.md"
    page.write_text(MARKED)
    write_page(page, results, BENCHMARKS_PAGE)
    once = page.read_text()
    write_page(page, results, BENCHMARKS_PAGE)
    assert page.read_text() == once


def test_a_page_without_marks_is_refused_and_left_alone(results: Path) -> None:
    page = results / "page.md"
    page.write_text("nothing here\n")
    with pytest.raises(BenchError, match="bench:start"):
        write_page(page, results, README)
    assert page.read_text() == "nothing here\n"


@pytest.mark.parametrize(("page", "sections"), [("README.md", README), ("docs/benchmarks.md", BENCHMARKS_PAGE)])
def test_a_page_has_the_figures_of_the_newest_results(page: str, sections: Sections) -> None:
    text = (ROOT / page).read_text()
    assert text == with_figures(text, ROOT / "bench" / "results", sections), "python -m bench readme writes it"


def test_the_readme_can_be_read_in_two_minutes() -> None:
    readme = (ROOT / "README.md").read_bytes()
    assert len(readme) <= README_LIMIT
    first_screen = readme.decode().splitlines()[:40]
    assert [line for line in first_screen if line.startswith("$ make demo")]
    assert [line for line in first_screen if line.startswith("$ make test")]
