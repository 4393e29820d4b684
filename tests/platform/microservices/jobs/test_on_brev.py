"""Brev with stand-ins of `brev`, `ssh` and `docker`: the contract, and what becomes of instances."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.daemons.installed_programs import install
from tests.platform.microservices.jobs.contract import Ground, PlatformContract, clean_environment, free_ports, get

from pilotlight.microservices.jobs.target_service import TargetService
from pilotlight.microservices.registry.registry_file import registry

INSTANCE = {"name": "gpu-one", "id": "abc123def", "status": "RUNNING"}


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    docker, instances = tmp_path / "docker", tmp_path / "brev.json"
    docker.mkdir()
    instances.write_text(json.dumps([INSTANCE]))
    environ = clean_environment(
        tmp_path, BREV_STAND_IN=str(instances), SSH_STAND_IN="gpu-one,ims-*", DOCKER_HOST=f"unix://{docker}"
    )
    environ["PATH"] = f"{install(tmp_path / 'bin', 'brev', 'ssh', 'docker')}:{Path(sys.executable).parent}:/bin"
    return Ground(
        TargetService("brev", environ), environ, registry(environ), {"instance_id": "abc123def"}, ports=free_ports(),
        written=lambda: "".join(file.read_text() for file in docker.glob("*.json")),
    )  # fmt: skip


def instances(ground: Ground) -> list[str]:
    return [row["name"] for row in json.loads(Path(ground.environ["BREV_STAND_IN"]).read_text())]


@pytest.mark.long  # the contract of every platform, over ssh; what is Brev's own is tested below
class TestBrev(PlatformContract):
    pass


def test_an_instance_that_was_named_has_its_folders_mounted_and_stays_after_a_stop(ground: Ground) -> None:
    job = ground.job()
    with ground.started(replace(job, options={**job.options, "mounts": "/models:/models:ro"})) as entry:
        assert "--mount=type=bind,source=/models,target=/models,readonly" in ground.written()
        assert f"--publish=0.0.0.0:{entry.host_port}:8080" in ground.written()
        assert (entry.instance_id, entry.platform_job_id) == ("abc123def", None)
        assert entry.host_url == f"http://127.0.0.1:{entry.host_port}"
    assert (instances(ground), ground.written()) == (["gpu-one"], "")


def test_an_instance_is_created_where_none_is_named_and_goes_with_the_job(ground: Ground) -> None:
    job = replace(ground.job(), options={})
    with ground.started(job) as entry:
        assert instances(ground) == ["gpu-one", entry.instance_id]
        ground.until(job, entry, "running")
        # Of a deleted instance the container would end, too.
        subprocess.run(["docker", "rm", str(entry.instance_id)], env=dict(ground.environ), check=True)
    assert instances(ground) == ["gpu-one"]
    assert ground.platform.status(job.id, entry).state == "gone"


def test_a_stop_does_not_wait_until_an_instance_has_ended(ground: Ground) -> None:
    job = replace(ground.job(), options={})
    with ground.started(job) as entry:
        brev = Path(ground.environ["PATH"].partition(":")[0]) / "brev"
        brev.rename(brev.with_name("whole-brev"))
        brev.write_text(f'#!/bin/sh\n[ "$1" = delete ] || exec {brev.with_name("whole-brev")} "$@"\n'
            'sed -i s/RUNNING/DELETING/g "$BREV_STAND_IN"\n')  # fmt: skip
        brev.chmod(0o755)
        subprocess.run(["docker", "rm", str(entry.instance_id)], env=dict(ground.environ), check=True)
        ground.platform.stop(job.id, entry)
        seen = ground.platform.status(job.id, entry)
        assert (seen.state, seen.reason) == ("stopped", f"the instance {entry.instance_id} is DELETING")


def test_the_port_of_a_closed_job_is_reached_by_a_tunnel_for_as_long_as_a_request_takes(ground: Ground) -> None:
    job = replace(ground.job(), closed=True)
    with ground.started(job) as entry:
        ground.until_ready(job, entry)
        assert f"--publish=127.0.0.1:{entry.host_port}:8080" in ground.written()
        with ground.platform.open_route(job.id, entry) as url:
            assert url != entry.host_url
            assert get(f"{url}/v2/health/ready") == 200
        assert get(f"{url}/v2/health/ready") == 0


def test_a_job_of_a_stopped_instance_is_stopped(ground: Ground) -> None:
    job = ground.job()
    with ground.started(job) as entry:
        file = Path(ground.environ["BREV_STAND_IN"])
        file.write_text(json.dumps([{**INSTANCE, "status": "STOPPED"}]))
        seen = ground.platform.status(job.id, entry)
        assert (seen.state, seen.reason) == ("stopped", "the instance gpu-one is STOPPED")
        file.write_text(json.dumps([INSTANCE]))
