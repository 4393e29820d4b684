"""The README's figures are those of kept results, and one command writes them."""

import json
from pathlib import Path

import pytest
from bench.embedded.report import SUBJECT
from bench.environments import ROOT
from bench.growth.curves import Growth, Point
from bench.load import BenchError
from bench.readme import BENCHMARKS_PAGE, SECTIONS, with_figures, write_readme
from bench.rounds import Result
from tests.doc_pages import page_section

MACHINE = {"cpu": "A CPU", "cores": "2", "memory": "8 GiB", "kernel": "Linux 6", "arch": "x86_64", "python": "3.11.7"}
EMBEDDED = (
    "cold.pilot_s", "cold.plain_s", "deploy.ready_s", "gateway.added_p50_ms", "direct.c32.rps", "gateway.kept_percent",
    "zero.services", "zero.memory_mb", "zero.cpu_percent",
)  # fmt: skip
MARKED = "before\n" + "".join(f"<!-- {name}:start -->\nstale\n<!-- {name}:end -->\n" for name in SECTIONS) + "after\n"


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
    text = with_figures(MARKED, results)
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "stale" not in text
    assert "| JSON, 32 connections: requests/s | **200** |" in text
    assert "bench/results/new.svg" in text
    assert "CPU: 200 s at 1, 20,000 s at 100, growing as n^1.00" in text
    assert "](bench/results/new-growth.svg)" in text
    assert "`python -m bench.growth --axes rendering`" in text
    assert "[all figures](bench/results/embedded.md)" in text


def test_writing_twice_changes_nothing(results: Path) -> None:
    readme = results / "README.md"
    readme.write_text(MARKED)
    write_readme(readme, results)
    once = readme.read_text()
    write_readme(readme, results)
    assert readme.read_text() == once


def test_a_readme_without_marks_is_refused_and_left_alone(results: Path) -> None:
    readme = results / "README.md"
    readme.write_text("nothing here\n")
    with pytest.raises(BenchError, match="bench:start"):
        write_readme(readme, results)
    assert readme.read_text() == "nothing here\n"


def test_the_readme_has_every_figure_as_it_is_kept() -> None:
    text = (ROOT / "README.md").read_text()
    assert text == with_figures(text, ROOT / "bench" / "results"), "python -m bench readme writes it"


def test_the_page_of_benchmarks_has_the_figures_of_the_cluster_as_they_are_kept() -> None:
    text = page_section("docs/benchmarks.md", "Benchmarks")
    kept = with_figures(text, ROOT / "bench" / "results", BENCHMARKS_PAGE)
    assert text == kept, "python -m bench readme writes it"
