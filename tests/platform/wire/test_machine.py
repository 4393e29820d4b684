"""Readings of the machine: free ports, /proc/meminfo, the end of a log file."""

import socket
from pathlib import Path

import pytest

from pilotlight.wire.machine import LOOPBACK, free_port, free_ports, last_lines, meminfo_bytes


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
