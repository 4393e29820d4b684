from pathlib import Path

import pytest

from pilotlight_predictor.metrics.cpu_readings import CpuMeter, CpuTimes, parse_cpu_times, utilization

STAT = "cpu  100 20 30 800 50 5 5 10 40 0\ncpu0 100 20 30 800 50 5 5 10 40 0\nintr 1\n"
MEMINFO = "MemTotal:       1000 kB\nMemFree:          10 kB\nMemAvailable:    400 kB\nHugePages_Total:       0\n"


def test_idle_and_waiting_are_not_busy_and_guests_count_once() -> None:
    assert parse_cpu_times(STAT) == CpuTimes(busy=170, total=1020)


def test_used_memory_leaves_out_what_the_kernel_could_free(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text(MEMINFO)
    (tmp_path / "stat").write_text(STAT)
    sample = CpuMeter(tmp_path).read()
    assert sample is not None
    assert (sample.memory_total_bytes, sample.memory_used_bytes) == (1000 * 1024, 600 * 1024)


@pytest.mark.parametrize(
    ("after", "expected"),
    [(CpuTimes(15, 120), 0.25), (CpuTimes(10, 100), 0.0), (CpuTimes(5, 90), 0.0), (CpuTimes(200, 200), 1.0)],
)
def test_utilisation_is_between_0_and_1_whatever_the_clock_does(after: CpuTimes, expected: float) -> None:
    assert utilization(CpuTimes(10, 100), after) == expected


def test_the_meter_reports_what_happened_between_two_reads(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text(MEMINFO)
    (tmp_path / "stat").write_text("cpu 10 0 0 90 0 0 0 0 0 0\n")
    meter = CpuMeter(tmp_path)
    meter.read()
    (tmp_path / "stat").write_text("cpu 60 0 0 140 0 0 0 0 0 0\n")
    sample = meter.read()
    assert sample is not None
    assert sample.utilization == 0.5


def test_without_proc_there_is_no_sample(tmp_path: Path) -> None:
    assert CpuMeter(tmp_path).read() is None


def test_this_machine_has_memory() -> None:
    sample = CpuMeter().read()
    assert sample is not None
    assert 0 < sample.memory_used_bytes < sample.memory_total_bytes
