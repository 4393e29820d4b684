"""Readings of the machine: free ports, CPUs, memory, the end of a log file."""

import socket
from pathlib import Path

import pytest

from pilotlight.wire.machine import (
    LOOPBACK,
    available_memory,
    cpu_share,
    free_port,
    free_ports,
    last_lines,
    limit_files,
    limited_memory,
    meminfo_bytes,
    total_memory,
    usable_cpus,
)


def test_a_preferred_port_is_returned_only_while_it_is_free() -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        assert free_port(taken.getsockname()[1]) != taken.getsockname()[1]
    preferred = free_port()
    assert free_port(preferred) == preferred


def test_free_ports_differ() -> None:
    assert len(set(free_ports(3))) == 3


def test_a_field_of_meminfo_is_in_bytes() -> None:
    assert meminfo_bytes("MemTotal:       4000 kB\nMemFree: 1 kB\n", "MemTotal") == 4_096_000
    assert meminfo_bytes("MemTotal:\n", "MemTotal") is None
    assert meminfo_bytes("", "MemTotal") is None


def test_the_last_lines_are_those_written_since_an_offset(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("one\ntwo\nthree\n")
    assert last_lines(log) == ["one", "two", "three"]
    assert last_lines(log, 2) == ["two", "three"]
    assert last_lines(log, since=4) == ["two", "three"]
    assert last_lines(log, since=1000) == ["one", "two", "three"]  # rotated since


def test_a_limit_in_bytes_may_cut_the_first_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("one\ntwo\nthree\n")
    assert last_lines(log, max_bytes=8) == ["o", "three"]
    assert last_lines(log, max_bytes=8, whole=True) == ["three"]
    assert last_lines(log, since=8, max_bytes=6, whole=True) == ["three"]


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        last_lines(tmp_path / "none")


@pytest.mark.parametrize(
    ("text", "share"), [("50000 100000", 0.5), ("max 100000", None), ("-1 100000", None), ("", None), ("1 0", None)]
)
def test_a_share_of_a_cpu_is_read(text: str, share: float | None) -> None:
    assert cpu_share(text) == share


def test_a_tenth_of_a_cpu_is_read(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("10000 100000\n")
    assert usable_cpus(tmp_path) == 0.1


def test_the_older_control_groups_are_read_too(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("25000\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert usable_cpus(tmp_path) == 0.25


def test_a_limit_below_what_is_free_counts() -> None:
    meminfo = "MemTotal: 8 kB\nMemAvailable: 4 kB\n"
    assert limited_memory(meminfo, ["1000\n"], "MemAvailable") == 1000
    assert limited_memory(meminfo, ["9223372036854771712\n"], "MemAvailable") == 4096


def test_this_machine_has_both() -> None:
    assert usable_cpus() > 0
    assert 0 < (available_memory() or 0) <= total_memory()


def test_a_container_has_what_its_limit_leaves_of_the_machine() -> None:
    meminfo = "MemTotal:       1000 kB\nMemFree:         10 kB\n"
    assert limited_memory(meminfo, []) == 1_024_000
    assert limited_memory(meminfo, ["max\n"]) == 1_024_000
    assert limited_memory(meminfo, ["max\n", "500000\n", "700000\n"]) == 500_000
    assert limited_memory(meminfo, ["9000000000\n"]) == 1_024_000


@pytest.mark.parametrize(
    ("cgroup", "files"),
    [
        ("0::/\n", ["/memory.max"]),
        ("0::/a/b\n", ["/a/b/memory.max", "/a/memory.max", "/memory.max"]),
        ("3:cpu,memory:/a\n2:cpuset:/b\n", ["/memory/a/memory.limit_in_bytes", "/memory/memory.limit_in_bytes"]),
    ],
    ids=["container", "group within groups", "version 1"],
)
def test_limits_stand_at_the_group_of_the_process_and_at_all_above_it(cgroup: str, files: list[str]) -> None:
    assert limit_files(cgroup) == [f"/sys/fs/cgroup{file}" for file in files]
