import json
from pathlib import Path

from bench.plot import draw
from bench.report import markdown, table
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


def test_requests_that_differ_stand_beside_those_that_repeat() -> None:
    made = result()
    made.add("pilotlight", {"json.id.rps": 15_000.0})
    lines = table(made).splitlines()
    repeated = next(at for at, line in enumerate(lines) if line.startswith("| JSON, 32 connections: p99"))
    assert lines[repeated + 1] == "| JSON, 32 connections, unique request ids: requests/s | **15,000** | – |"


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


def test_report_tells_the_load_before_and_after_and_what_was_promised() -> None:
    made = result()
    made.machine = {**MACHINE, "load_before": "0.10", "load_after": "1.20"}
    text = markdown(made)
    assert "load average 0.10 before and 1.20 after" in text
    assert "| JSON, 32 connections: requests/s, vs KServe | ≥ 45× | 20× | **missed**: no reason measured |" in text


def test_result_survives_being_written_and_read() -> None:
    made = result()
    assert Result.from_dict(json.loads(json.dumps(made.to_dict()))) == made


def test_same_result_draws_the_same_picture(tmp_path: Path) -> None:
    draw(result(), tmp_path / "one.svg")
    draw(result(), tmp_path / "two.svg")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
