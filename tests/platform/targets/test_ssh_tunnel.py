"""Tunnels: processes that outlive who opened them, known by more than their number."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from tests.daemons.installed_programs import install
from tests.platform.microservices.jobs.contract import get

from pilotlight.errors import PlatformError
from pilotlight.microservices.jobs.host_ports import can_bind
from pilotlight.targets.local.process_identity import identify
from pilotlight.targets.ssh_tunnel import Tunnel, Tunnels, arguments


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def answering() -> Iterator[int]:
    """A server of this machine, by its port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.fixture
def far() -> Iterator[int]:
    with answering() as port:
        yield port


@pytest.fixture
def near() -> int:
    return next(port for port in range(18800, 18900) if can_bind(port))


@pytest.fixture
def tunnels(tmp_path: Path) -> Iterator[Tunnels]:
    environ = {
        **os.environ,
        "PATH": f"{install(tmp_path / 'bin', 'ssh')}:{os.environ['PATH']}",
        "SSH_STAND_IN": "node1",
    }
    made = Tunnels(tmp_path / "registry.json.tunnels", environ)
    yield made
    made.close("job")


def holder(tmp_path: Path) -> int:
    return int(json.loads((tmp_path / "registry.json.tunnels/job.json").read_text())["holder"][0])


def test_a_tunnel_leads_there_until_it_is_closed(tunnels: Tunnels, near: int, far: int, tmp_path: Path) -> None:
    tunnels.open("job", Tunnel("node1", ((near, far),)))
    assert get(f"http://127.0.0.1:{near}/") == 200
    pid = holder(tmp_path)
    assert os.getsid(pid) == pid
    tunnels.close("job")
    assert identify(pid) is None
    assert list((tmp_path / "registry.json.tunnels").iterdir()) == []


def test_a_tunnel_that_stands_is_used_again(tunnels: Tunnels, near: int, far: int, tmp_path: Path) -> None:
    tunnels.open("job", Tunnel("node1", ((near, far),)))
    first = holder(tmp_path)
    tunnels.open("job", Tunnel("node1", ((near, far),)))
    assert holder(tmp_path) == first


def test_a_job_that_moved_gets_another_tunnel(tunnels: Tunnels, near: int, far: int, tmp_path: Path) -> None:
    tunnels.open("job", Tunnel("node1", ((near, far + 1),)))
    first = holder(tmp_path)
    tunnels.open("job", Tunnel("node1", ((near, far),)))
    assert identify(first) is None
    assert get(f"http://127.0.0.1:{near}/") == 200


def test_it_is_ended_by_a_process_that_did_not_open_it(tunnels: Tunnels, near: int, far: int, tmp_path: Path) -> None:
    """As `stop` is on the command line."""
    code = (
        "import sys; from pathlib import Path; from pilotlight.targets.ssh_tunnel import *;"
        f"Tunnels(Path({str(tmp_path / 'registry.json.tunnels')!r}), __import__('os').environ).open('job', "
        f"Tunnel('node1', (({near}, {far}),)))"
    )
    environ = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "SSH_STAND_IN": "node1"}
    subprocess.run([sys.executable, "-c", code], env=environ, check=True, timeout=60)
    assert get(f"http://127.0.0.1:{near}/") == 200
    tunnels.close("job")
    assert get(f"http://127.0.0.1:{near}/") == 0


def test_a_stranger_who_got_the_number_is_left_alone(tunnels: Tunnels, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        known = identify(stranger.pid)
        assert known is not None
        folder = tmp_path / "registry.json.tunnels"
        folder.mkdir()
        note = {"holder": known._replace(start_ticks=known.start_ticks - 1), "tunnel": [1, "node1", 2]}
        (folder / "job.json").write_text(json.dumps(note))
        tunnels.close("job")
        assert stranger.poll() is None
        stranger.communicate(b"\n")


def test_a_host_that_cannot_be_reached_is_named_and_nothing_is_left(
    tunnels: Tunnels, near: int, tmp_path: Path
) -> None:
    with pytest.raises(
        PlatformError, match="no tunnel to node2: ssh: connect to host node2 port 22: Connection timed out"
    ):
        tunnels.open("job", Tunnel("node2", ((near, 1),)))
    assert list((tmp_path / "registry.json.tunnels").iterdir()) == []


def test_a_folder_that_others_can_write_to_is_refused(tunnels: Tunnels, near: int, far: int, tmp_path: Path) -> None:
    folder = tmp_path / "registry.json.tunnels"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(PlatformError, match="must be a folder that only you can write to"):
        tunnels.open("job", Tunnel("node1", ((near, far),)))


def test_ssh_never_asks_and_ends_where_it_cannot_forward() -> None:
    told = arguments(Tunnel("node1", ((8081, 20007),)))
    assert told[:2] == ["ssh", "-N"]
    assert {"BatchMode=yes", "ExitOnForwardFailure=yes", "127.0.0.1:8081:127.0.0.1:20007"} <= set(told)
    assert told[-2:] == ["--", "node1"]
