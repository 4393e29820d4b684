"""Ports that somebody else has: a start says which one, who has it and what to change, and leaves nothing behind."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.embedded import Platform, processes_of, serverless
from tests.ports import free_port

from pilotlight.errors import PlatformError
from pilotlight.targets.local import control_process_launcher
from pilotlight.targets.local.home_directory import Home


@contextmanager
def taken(port: int = 0) -> Iterator[int]:
    """A port of ours, on which nobody answers."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", port))
        holder.listen()
        yield holder.getsockname()[1]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    monkeypatch.setenv("PILOTLIGHT_PILOT_LIGHT", "off")
    monkeypatch.setenv("PILOTLIGHT_HOME", str(tmp_path / "home"))
    found = Home(tmp_path / "home").create()
    yield found
    assert processes_of(found) == []


@pytest.mark.parametrize(
    ("variable", "flag", "other"),
    [
        ("PILOTLIGHT_GATEWAY_PORT", "--gateway-port", "PILOTLIGHT_API_PORT"),
        ("PILOTLIGHT_API_PORT", "--api-port", "PILOTLIGHT_GATEWAY_PORT"),
    ],
)
def test_a_start_whose_port_is_taken_says_by_whom_and_leaves_nothing_running(
    home: Home, monkeypatch: pytest.MonkeyPatch, variable: str, flag: str, other: str
) -> None:
    with taken() as port:
        monkeypatch.setenv(variable, str(port))
        monkeypatch.setenv(other, str(free_port()))
        with pytest.raises(PlatformError) as refused:
            control_process_launcher.ensure(home, deadline_s=60)
    told = str(refused.value)
    assert f"port {port} on 127.0.0.1 is in use by " in told
    assert f"(pid {os.getpid()})" in told
    assert f"choose another port with up {flag} or {variable}" in told
    assert "Traceback" not in told


def test_a_service_takes_the_next_port_when_its_own_is_taken(tmp_path: Path) -> None:
    with taken() as port, Platform(tmp_path / "home", flags=("--service-ports", str(port))) as platform:
        platform.deploy(serverless())
        platform.wait_phase("Ready")
        platform.wait(lambda: "port" in platform.status().urls, "a port of its own")
        own = int(platform.status().urls["port"].rpartition(":")[2])
        assert port < own < port + 50
        platform.gateway_port = own
        assert platform.ask("/v2/models/iris/infer").status == 200


def test_a_service_whose_ports_were_taken_meanwhile_gets_others(tmp_path: Path) -> None:
    first = free_port()
    with Platform(tmp_path / "home", flags=("--service-ports", str(first))) as platform:
        platform.deploy(serverless().replace("protocolVersion: v2", "protocolVersion: grpc-v2"))
        platform.wait(lambda: {"port", "grpc"} <= {*platform.status().urls}, "ports of its own")
        own = {kind: url for kind, url in platform.status().urls.items() if kind in ("port", "grpc")}
    port, grpc = (int(url.rpartition(":")[2]) for url in own.values())
    with (
        taken(port),
        taken(grpc),
        Platform(tmp_path / "home", flags=("--service-ports", str(first))) as platform,
    ):
        # Those that it had are told until the gateway has tried them.
        platform.wait(lambda: not own.items() & ({**own, **platform.status().urls}).items(), "other ports of its own")
        platform.wait(lambda: platform.ask().status == 200, "an answer")


def test_a_database_that_is_none_is_told_in_one_sentence(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.database.write_text("this is a diary, not a database, and longer than its header would be" * 20)
    monkeypatch.setenv("PILOTLIGHT_GATEWAY_PORT", str(free_port()))
    monkeypatch.setenv("PILOTLIGHT_API_PORT", str(free_port()))
    with pytest.raises(PlatformError, match="it is not a Pilotlight database; restore a backup") as refused:
        control_process_launcher.ensure(home, deadline_s=60)
    assert "Traceback" not in str(refused.value)


@pytest.mark.parametrize(
    ("command", "written"),
    [
        (("platformctl", "up"), "abc"),
        (("platformctl", "doctor"), "65536"),
        (("pilotlight.control_plane.daemon",), "-1"),
    ],
)
def test_a_port_that_is_none_is_told_in_one_sentence(
    home: Home, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], written: str
) -> None:
    monkeypatch.setenv("PILOTLIGHT_GATEWAY_PORT", written)
    ran = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, timeout=60)
    told = f"PILOTLIGHT_GATEWAY_PORT = {written}, must be a port from 0 to 65535"
    assert (ran.returncode, told in ran.stderr, "Traceback" in ran.stderr) == (2, True, False), ran.stderr
