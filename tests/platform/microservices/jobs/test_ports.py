"""Which port a microservice gets: lowest of the range, not in the registry for that platform, and really free."""

import os
import socket
import subprocess
import sys
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.ports import free_port

from pilotlight import contract
from pilotlight.errors import PlatformError, UsageError
from pilotlight.microservices.jobs import host_ports
from pilotlight.microservices.jobs.host_ports import RANGE, RESERVED, can_bind, candidates, claim_port, used_ports
from pilotlight.microservices.registry.records import Entry
from pilotlight.microservices.registry.registry_file import Registry

CLAIM = """
import sys
from pathlib import Path
from pilotlight.microservices.jobs.host_ports import claim_port
from pilotlight.microservices.registry.registry_file import Registry

here = Path(sys.argv[1])
with claim_port(Registry(here), "docker", bindable=lambda _: True, folder=here.with_name("claims")) as port:
    print(port, flush=True)
    input()
"""


def entry(platform: str, port: int, instance: str | None = None) -> Entry:
    return Entry(platform, "cosmos-rl", f"http://localhost:{port}", "2026", port, None, instance)


@pytest.fixture
def held(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "state.json")


def claim(held: Registry, platform: str, wanted: int = 0, **more: Any) -> AbstractContextManager[int]:
    """In a folder of the test's own: on this machine others may start microservices meanwhile."""
    return claim_port(held, platform, wanted, folder=held.path.with_name("claims"), **more)


def test_the_range_leaves_out_what_the_embedded_platform_needs() -> None:
    assert (RANGE[0], RANGE[-1]) == (8080, 8199)
    assert {contract.GATEWAY_PORT, contract.API_PORT} == RESERVED
    assert not set(candidates(frozenset())) & RESERVED


def test_ports_count_by_platform_and_on_brev_by_instance() -> None:
    entries = {
        "a": entry("docker", 8080), "b": entry("local-docker", 8081), "c": entry("slurm", 8082),
        "d": entry("brev", 8083, "one"), "e": entry("brev", 8084, "two"),
    }  # fmt: skip
    assert used_ports(entries, "docker") == {8080, 8081}
    assert used_ports(entries, "local-docker") == {8080, 8081}
    assert used_ports(entries, "brev", "one") == {8083}
    assert used_ports(entries, "local") == frozenset()


def test_the_lowest_free_one_is_taken(held: Registry) -> None:
    held.add("a", entry("docker", 8080))
    held.add("b", entry("docker", 8082))
    with claim(held, "docker", bindable=lambda port: port != 8081) as port:
        assert port == 8083


def test_a_port_that_somebody_else_listens_on_is_passed_over_though_no_entry_has_it() -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        assert not can_bind(port)
    assert can_bind(port)


def test_processes_that_start_at_once_get_different_ports(held: Registry) -> None:
    command = [sys.executable, "-c", CLAIM, str(held.path)]
    with ExitStack() as stack:
        running = [
            stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            for _ in range(5)
        ]  # fmt: skip
        ports = sorted(int(each.stdout.readline()) for each in running if each.stdout)
        for each in running:
            each.communicate("\n")
    assert ports == [8080, 8081, 8082, 8083, 8084]
    with claim(held, "docker", bindable=lambda _: True) as port:
        assert port == 8080


def test_nothing_is_bound_here_for_a_port_of_an_instance(held: Registry) -> None:
    def never(port: int) -> bool:
        raise AssertionError(port)

    with claim(held, "brev", instance_id="one", bindable=never) as port:
        assert port == 8080


def test_a_port_that_was_asked_for_is_given_or_refused(held: Registry) -> None:
    held.add("a", entry("docker", 8150))
    with claim(held, "docker", 9000, bindable=lambda _: True) as port:
        assert port == 9000
    with pytest.raises(UsageError, match="host_port = 8150 is in use"), claim(held, "docker", 8150):
        pass


def test_a_full_range_is_told(held: Registry) -> None:
    with (
        pytest.raises(PlatformError, match="no port of 8080 to 8199 is free"),
        claim(held, "docker", bindable=lambda _: False),
    ):
        pass


def test_whoever_has_another_registry_gets_another_port(tmp_path: Path) -> None:
    one, two = Registry(tmp_path / "one.json"), Registry(tmp_path / "two.json")
    with claim_port(one, "local") as first, claim_port(two, "docker") as second:
        assert first != second


def test_a_folder_of_claims_that_somebody_laid_there_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(host_ports, "gettempdir", lambda: str(tmp_path))
    folder, held = tmp_path / f"pilotlight-ports-{os.getuid()}", Registry(tmp_path / "state.json")
    with claim_port(held, "docker"):
        assert folder.stat().st_mode & 0o777 == 0o700
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PlatformError, match="must be a folder that only you can write to"), claim_port(held, "docker"):
        pass
