"""A tunnel by the real ssh, through a real sshd that the test starts for itself."""

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.daemons.availability import available
from tests.daemons.ssh_server import ssh_server
from tests.eventually import eventually
from tests.platform.microservices.jobs.contract import free_ports, get
from tests.platform.targets.test_ssh_tunnel import answering

from pilotlight.errors import PlatformError
from pilotlight.targets.local.process_identity import identify
from pilotlight.targets.ssh_tunnel import Tunnel, Tunnels
from pilotlight.wire import unix_socket

pytestmark = pytest.mark.platform


@pytest.fixture(scope="module")
def environ() -> Iterator[dict[str, str]]:
    with available(ssh_server(os.environ, "node1", {})) as environ:
        yield environ


def test_a_tunnel_by_ssh_leads_there_until_it_is_closed(environ: dict[str, str], tmp_path: Path) -> None:
    tunnels, near = Tunnels(tmp_path / "tunnels", environ), next(free_ports())
    with answering() as far:
        tunnels.open("job", Tunnel("node1", ((near, far),)))
        assert get(f"http://127.0.0.1:{near}/") == 200
        tunnels.close("job")
        assert get(f"http://127.0.0.1:{near}/") == 0


def test_ssh_gives_up_where_it_would_have_to_ask(environ: dict[str, str], tmp_path: Path) -> None:
    """BatchMode: no password, no question; the host is unknown to the configuration and takes no key."""
    stranger = {**environ, "HOME": str(tmp_path)}
    with pytest.raises(PlatformError, match=r"no tunnel to 127\.0\.0\.1: .*(denied|refused|failed)"):
        Tunnels(tmp_path / "tunnels", stranger).open("job", Tunnel("127.0.0.1", ((next(free_ports()), 1),)))


def test_unix_sockets_are_forwarded_by_ssh_and_again_after_it_was_killed(
    environ: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "near"
    folder.mkdir()
    near, far = folder / "8080", tmp_path / "8080"
    tunnels = Tunnels(tmp_path / "tunnels", environ)
    with unix_socket.listen(far, 10) as server:
        server.settimeout(30)
        for _ in range(2):
            tunnels.open("job", Tunnel("node1", ((str(near), str(far)),)))
            assert near.stat().st_mode & 0o077 == 0, "only this user may connect"
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(near))
                server.accept()[0].close()  # of `open`, which tries whether it leads there
                with server.accept()[0] as connection:
                    connection.sendall(b"hello")
                assert client.recv(5) == b"hello"
            pid = json.loads((tmp_path / "tunnels/job.json").read_text())["holder"][0]
            os.kill(pid, signal.SIGKILL)
            eventually(lambda pid=pid: identify(pid) is None)
        tunnels.close("job")
