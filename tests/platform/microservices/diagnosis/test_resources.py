"""What this process may use, read from control groups of both generations."""

from pathlib import Path

import pytest

from pilotlight.microservices.diagnosis import Evidence, cpu_share, cpus, diagnose, memory


@pytest.mark.parametrize(
    ("text", "share"), [("50000 100000", 0.5), ("max 100000", None), ("-1 100000", None), ("", None), ("1 0", None)]
)
def test_a_share_of_a_cpu_is_read(text: str, share: float | None) -> None:
    assert cpu_share(text) == share


def test_a_tenth_of_a_cpu_is_told_as_too_little_while_a_model_loads(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("10000 100000\n")
    assert cpus(tmp_path) == 0.1
    (found,) = diagnose(Evidence(phase="loading", cpus=cpus(tmp_path)))
    assert found.name == "too_few_cpus"
    assert diagnose(Evidence(phase="ready", cpus=cpus(tmp_path))) == ()


def test_the_older_control_groups_are_read_too(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("25000\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert cpus(tmp_path) == 0.25
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (tmp_path / "meminfo").write_text("MemTotal: 8 kB\nMemAvailable: 4 kB\n")
    assert memory(tmp_path, tmp_path / "meminfo") == 4096


def test_a_limit_below_what_is_free_counts(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "meminfo").write_text("MemAvailable: 4 kB\n")
    assert memory(tmp_path, tmp_path / "meminfo") == 1000
    assert memory(tmp_path / "none", tmp_path / "none") is None


def test_this_machine_has_both() -> None:
    assert cpus() > 0
    assert (memory() or 0) > 0
