"""Daemons of a test run end with it, however it ends, and two runs do not meet."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.daemons.availability import Unavailable, available
from tests.daemons.bridge import bridge, free_network
from tests.daemons.docker_daemon import IMAGE, bridge_address
from tests.eventually import eventually
from tests.serving import ROOT

RUN = """
import signal
from pathlib import Path
import pytest
from tests.daemons.availability import available
from tests.daemons.bridge import bridge
from tests.daemons.daemons import daemon

signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs in the background of a shell ignores it

@pytest.fixture(scope="session")
def running(tmp_path_factory):
    with available(bridge()) as name, daemon(["sleep", "600"], Path("log"), {}, lambda: True) as process:
        Path("started").write_text(f"{name} {process.pid}")
        Path("started").rename("running")  # whole at once: a signal follows
        yield

def test_that_stops(running):
    STOP
"""


@pytest.mark.platform
@pytest.mark.parametrize(
    ("stop", "number"),
    [("assert False", None), ("input()", signal.SIGINT), ("input()", signal.SIGTERM)],
    ids=["failure", "SIGINT", "SIGTERM"],
)
def test_a_run_leaves_neither_daemon_nor_bridge(tmp_path: Path, stop: str, number: signal.Signals | None) -> None:
    with available(bridge()):  # or skip
        pass
    (tmp_path / "test_run.py").write_text(RUN.replace("STOP", stop))
    words = [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", "test_run.py"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL}
    with subprocess.Popen(words, cwd=tmp_path, env=environ, **pipes) as run:
        eventually((tmp_path / "running").exists, check=lambda: _not_ended(run, number))
        if number:
            run.send_signal(number)
        assert run.wait(60) in (1, 2)
    name, pid = (tmp_path / "running").read_text().split()
    assert not Path("/proc", pid).exists()
    assert not Path("/sys/class/net", name).exists()


def _not_ended(run: subprocess.Popen[bytes], number: signal.Signals | None) -> None:
    assert number is None or run.poll() is None, "it ended before it could be stopped"


def test_networks_of_two_runs_differ() -> None:
    taken = ""
    for _ in range(256):
        taken += f"7: plabc    inet {free_network(taken)} scope global plabc\n"
    assert len(set(re.findall(r"10\.199\.\d+\.1/24", taken))) == 256


def test_what_cannot_run_here_skips_unless_it_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def absent() -> Iterator[None]:
        raise Unavailable("no root")
        yield

    monkeypatch.delenv("PILOTLIGHT_REQUIRE_PLATFORMS", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no root"), available(absent()):
        pass
    monkeypatch.setenv("PILOTLIGHT_REQUIRE_PLATFORMS", "1")
    with pytest.raises(pytest.fail.Exception, match="no root"), available(absent()):
        pass


@pytest.mark.platform
def test_a_container_reaches_servers_of_this_machine_on_the_bridge(docker_engine: dict[str, str]) -> None:
    """As models in object stores and other components need it."""
    address = bridge_address(docker_engine)
    with socket.create_server((address, 0)) as server:
        code = f"import socket; socket.create_connection(({address!r}, {server.getsockname()[1]})).sendall(b'hello')"
        words = ["docker", "run", "--rm", "--entrypoint=python", IMAGE, "-c", code]
        subprocess.run(words, env=docker_engine, check=True, capture_output=True, timeout=60)
        connection, (client, _) = server.accept()
        with connection:
            assert connection.recv(5) == b"hello"
    assert client.rpartition(".")[0] == address.rpartition(".")[0]
