"""A tunnel by the real ssh, through a real sshd that the test starts for itself."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.daemons.availability import available
from tests.daemons.ssh_server import ssh_server
from tests.platform.microservices.platforms.contract import free_ports, get
from tests.platform.targets.slurm.test_ssh_tunnel import answering

from pilotlight.errors import PlatformError
from pilotlight.targets.slurm.ssh_tunnel import Tunnel, Tunnels

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
