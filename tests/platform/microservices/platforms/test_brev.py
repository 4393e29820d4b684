"""Brev: a stand-in of `brev` names this machine, where real ssh leads to and a real Docker runs the containers."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.daemons.availability import available
from tests.daemons.docker_daemon import IMAGE, IRIS, options
from tests.daemons.installed_programs import install
from tests.daemons.ssh_server import ssh_server
from tests.platform.microservices.platforms.contract import (
    Ground,
    PlatformContract,
    clean_environment,
    free_ports,
    get,
)

from pilotlight.errors import PlatformError
from pilotlight.microservices.platforms import platform
from pilotlight.microservices.platforms.brev import instance_name
from pilotlight.microservices.registry.records import Entry
from pilotlight.microservices.registry.registry_file import registry

pytestmark = pytest.mark.platform
INSTANCE = {"name": "gpu-one", "id": "abc123def", "status": "RUNNING"}
OPTIONS = {"network": "host", **options()}


@pytest.fixture(scope="module")
def reached(docker_engine: dict[str, str]) -> Iterator[dict[str, str]]:
    """The environment in which ssh leads to instances, which have Docker and nothing of the caller's environment."""
    remote = {name: docker_engine[name] for name in ("PATH", "DOCKER_HOST", "DOCKER_CONFIG")}
    with available(ssh_server(docker_engine, "gpu-one ms-*", remote)) as environ:
        yield environ


@pytest.fixture
def ground(reached: dict[str, str], tmp_path: Path) -> Ground:
    (tmp_path / "brev.json").write_text(json.dumps([INSTANCE]))
    path = f"{install(tmp_path / 'bin', 'brev')}:{reached['PATH']}"
    environ = clean_environment(tmp_path, reached, PATH=path, BREV_STAND_IN=str(tmp_path / "brev.json"))
    place = platform("brev", environ)
    named = {**OPTIONS, "instance_id": "abc123def"}
    return Ground(place, environ, registry(environ), named, IRIS, IMAGE, free_ports())


def instances(ground: Ground) -> list[str]:
    return [row["name"] for row in json.loads(Path(ground.environ["BREV_STAND_IN"]).read_text())]


class TestBrev(PlatformContract):
    def never_was(self, ground: Ground) -> Entry:
        return replace(super().never_was(ground), instance_id="abc123def")


def test_an_instance_that_was_named_stays_after_a_stop(ground: Ground) -> None:
    with ground.started(ground.job()) as entry:
        assert (entry.instance_id, entry.host_url) == ("abc123def", f"http://127.0.0.1:{entry.host_port}")
    assert instances(ground) == ["gpu-one"]


def test_an_instance_is_created_where_none_is_named_and_goes_with_the_job(ground: Ground) -> None:
    job = replace(ground.job(), options=OPTIONS)
    entry = ground.platform.start(job)
    assert entry.instance_id == instance_name(job.id)
    assert instances(ground) == ["gpu-one", instance_name(job.id)]
    ground.until(job, entry, "running")
    platform("docker", ground.environ).stop(job.id, entry)  # the container of a deleted instance would go with it
    ground.platform.stop(job.id, entry)
    assert instances(ground) == ["gpu-one"]
    assert ground.platform.status(job.id, entry).state == "gone"


def test_requests_go_through_a_tunnel_where_the_firewall_lets_none_in(ground: Ground) -> None:
    job = ground.job()
    with ground.started(job) as entry:
        ground.until_ready(job, entry)
        with socket.create_server(("127.0.0.1", 0)) as free:
            closed = free.getsockname()[1]
        shut = replace(entry, host_url=f"http://127.0.0.1:{closed}")
        with ground.platform.open_route(job.id, shut) as url:
            assert url != shut.host_url
            assert get(f"{url}/v2/health/ready") == 200
        assert get(f"{url}/v2/health/ready") == 0
        assert not list(ground.registry.path.with_name(ground.registry.path.name + ".tunnels").iterdir())


@pytest.mark.parametrize("status", ["STOPPED", "DEPLOYING"])
def test_an_instance_that_does_not_run_is_refused_with_what_starts_it(ground: Ground, status: str) -> None:
    Path(ground.environ["BREV_STAND_IN"]).write_text(json.dumps([{**INSTANCE, "status": status}]))
    with pytest.raises(PlatformError, match=f"instance_id = abc123def is {status}, must be RUNNING") as refused:
        ground.platform.preflight(ground.job())
    assert refused.value.hint == "brev start gpu-one"


def test_an_instance_that_cannot_be_reached_is_no_missing_container(ground: Ground) -> None:
    row = {**INSTANCE, "name": "gpu-two.invalid"}
    Path(ground.environ["BREV_STAND_IN"]).write_text(json.dumps([row]))
    entry = Entry("brev", "pilotlight", "http://127.0.0.1:1", "2026-01-01T00:00:00+00:00", 1, instance_id=row["id"])
    with pytest.raises(PlatformError, match="cannot be asked: ssh: Could not resolve hostname"):
        ground.platform.status("4ca2f1e6-0d5f-4d39-9a55-6a4f1e3d2b10", entry)
