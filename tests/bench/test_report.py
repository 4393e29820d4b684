import json
from pathlib import Path

import pytest
from bench.load import BenchError
from bench.plot import draw
from bench.report import END_MARK, START_MARK, markdown, table, write_readme
from bench.rounds import Result

MACHINE = {"cpu": "A CPU", "cores": "2", "memory": "8 GiB", "kernel": "Linux 6", "arch": "x86_64", "python": "3.11.7"}


def result(date: str = "2030-01-02T03:04:05+00:00") -> Result:
    made = Result(date, MACHINE, True, 4.0, 3)
    made.versions = {"pilotlight": "pilotlight 0.1.0", "kserve": "kserve 0.21.0"}
    for rps, p99 in ((900.0, 5.0), (1000.0, 4.0), (1100.0, 3.0)):
        made.add("kserve", {"json.c32.rps": rps, "json.c32.p99_ms": p99 * 10, "json.c32.errors": 1})
        made.add("pilotlight", {"json.c32.rps": rps * 20, "json.c32.p99_ms": p99, "json.c32.errors": 0})
    return made


def test_cells_are_medians_and_ratios_say_how_many_times_better_ours_is() -> None:
    lines = table(result()).splitlines()
    assert lines[0] == "| | **Pilotlight** | **KServe** |"
    assert "| JSON, 32 connections: requests/s | **20,000** | 1,000 (20×) |" in lines
    assert "| JSON, 32 connections: p99 ms | **4.00** | 40.00 (10×) |" in lines


def test_failed_requests_are_summed_over_all_rounds() -> None:
    assert table(result()).splitlines()[-1] == "| failed requests | 0 | 3 |"


def test_figure_that_only_one_server_has_leaves_a_dash() -> None:
    made = result()
    made.add("pilotlight", {"binary.c8.rps": 1000.0})
    assert "| 602 KB tensor, 8 connections: requests/s | **1,000** | – |" in table(made)


def test_rate_is_a_lower_bound_when_the_load_generator_used_up_its_core() -> None:
    made = result()
    made.add("pilotlight", {"json.c32.load_cpu": 0.99})
    assert "**≥ 20,000**" in table(made)


def test_report_names_machine_versions_starved_servers_and_failures() -> None:
    made = result()
    made.add("kserve", {"json.c32.server_cpu": 0.5})
    made.failures.append("Triton could not be installed: no wheel")
    text = markdown(made)
    for part in (
        "2030-01-02, A CPU, 2 cores",
        "kserve 0.21.0",
        "got only: KServe 50%",
        "- Triton could not be installed",
    ):
        assert part in text


def test_result_survives_being_written_and_read() -> None:
    made = result()
    assert Result.from_dict(json.loads(json.dumps(made.to_dict()))) == made


def test_readme_shows_the_newest_result_between_its_markers(tmp_path: Path) -> None:
    for name, date in (("old", "2030-01-01T00:00:00+00:00"), ("new", "2030-02-01T00:00:00+00:00")):
        (tmp_path / f"{name}.json").write_text(json.dumps(result(date).to_dict()))
    (tmp_path / "other.json").write_text(json.dumps({"benchmark": "gpu", "date": "2031-01-01"}))
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{START_MARK}\nstale\n{END_MARK}\nafter\n")
    assert write_readme(readme, tmp_path).name == "new.json"
    text = readme.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "stale" not in text
    assert "2030-02-01" in text
    write_readme(readme, tmp_path)
    assert readme.read_text() == text


def test_readme_without_markers_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "new.json").write_text(json.dumps(result().to_dict()))
    (tmp_path / "README.md").write_text("nothing here\n")
    with pytest.raises(BenchError, match="bench:start"):
        write_readme(tmp_path / "README.md", tmp_path)
    assert (tmp_path / "README.md").read_text() == "nothing here\n"


def test_same_result_draws_the_same_picture(tmp_path: Path) -> None:
    draw(result(), tmp_path / "one.svg")
    draw(result(), tmp_path / "two.svg")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
