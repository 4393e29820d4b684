"""Docker for real: Debian's engine, started here, runs the predictor's image and publishes its port."""

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.daemons.docker_daemon import IMAGE, IRIS, bridge_address, options
from tests.embedded import Platform as EmbeddedPlatform
from tests.platform.microservices.jobs.contract import Ground, PlatformContract, clean_environment, free_ports, get

from pilotlight.errors import PlatformError, UsageError
from pilotlight.microservices.jobs import launcher
from pilotlight.microservices.jobs.target_service import TargetService
from pilotlight.microservices.registry.records import Entry
from pilotlight.microservices.registry.registry_file import registry

pytestmark = pytest.mark.platform
OPTIONS = options()


@pytest.fixture
def ground(docker_engine: dict[str, str], tmp_path: Path) -> Iterator[Ground]:
    with EmbeddedPlatform(tmp_path / "home", docker_engine) as started:
        environ = clean_environment(tmp_path, docker_engine, PILOTLIGHT_HOME=str(started.home.root))

        def written() -> str:
            files = [file.read_text(errors="replace") for file in started.home.root.rglob("*") if file.is_file()]
            return "\n".join([containers(environ), *files])

        place = TargetService("local-docker", environ)
        yield Ground(place, environ, registry(environ), OPTIONS, IRIS, IMAGE, free_ports(), written)


def containers(environ: dict[str, str]) -> str:
    """What anybody sees who may ask the daemon for a list."""
    words = ["docker", "ps", "--all", "--no-trunc", "--format={{json .}}"]
    return subprocess.run(words, env=environ, capture_output=True, text=True, check=True).stdout


class TestDocker(PlatformContract):
    pass


def test_the_container_has_the_jobs_name_and_goes_with_the_stop(ground: Ground) -> None:
    job = ground.job()
    with ground.started(job) as entry:
        assert f'"Names":"{job.id}"' in containers(dict(ground.environ))
        assert (entry.platform, entry.host_url) == ("docker", f"http://localhost:{entry.host_port}")
    assert containers(dict(ground.environ)) == ""


@pytest.mark.parametrize("closed", [False, True])
def test_a_port_is_published_to_others_unless_the_job_is_closed(ground: Ground, closed: bool) -> None:
    job = replace(ground.job(), closed=closed)
    with ground.started(job) as entry:
        ground.until_ready(job, entry)
        other = f"http://{bridge_address(ground.environ)}:{entry.host_port}/v2/health/ready"
        assert get(other) == (0 if closed else 200)


def test_a_container_that_cannot_be_started_says_why_and_is_not_left_behind(ground: Ground) -> None:
    job = replace(ground.job(), options={**OPTIONS, "mounts": "/nowhere:/models:ro"})
    with ground.started(job) as entry:
        assert "/nowhere" in ground.until(job, entry, "failed").reason
    assert containers(dict(ground.environ)) == ""
    with pytest.raises(UsageError, match="mounts = /models:/models:nonsense, must be FOLDER:PATH"):
        ground.platform.preflight(replace(job, options={**OPTIONS, "mounts": "/models:/models:nonsense"}))


def test_a_container_of_a_script_is_seen_and_stopped(ground: Ground) -> None:
    """By its name, which is the job's id in the registry."""
    waits = ["--entrypoint=python", IMAGE, "-c", "import time; time.sleep(600)"]
    words = ["docker", "run", "--detach", "--name=of-a-script", *waits]
    subprocess.run(words, env=dict(ground.environ), check=True, capture_output=True)
    entry = Entry("docker", "cosmos-rl", "http://localhost:8199", "2026-01-01T00:00:00+00:00", 8199)
    assert ground.platform.status("of-a-script", entry).state == "running"
    ground.platform.stop("of-a-script", entry)
    assert containers(dict(ground.environ)) == ""


def test_a_folder_of_the_machine_is_seen_in_the_container(ground: Ground, tmp_path: Path) -> None:
    (tmp_path / "note").write_text("from outside")
    job = replace(ground.job(), options={**OPTIONS, "mounts": f"{tmp_path}:/given:ro"})
    words = "umask 0 && while read line; do echo $line; done < /given/note; exit 4 # pilotlight_predictor"
    tmp_path.chmod(0o755)
    for parent in list(tmp_path.parents)[:2]:
        parent.chmod(0o755)
    with ground.started(replace(job, command=words)) as entry:
        ground.until(job, entry, "failed", "stopped")
        seen = ground.platform.status(job.id, entry)
    assert seen.reason == "exit code 4"


def test_an_image_that_cannot_be_had_is_named_before_anything_starts(ground: Ground) -> None:
    with pytest.raises(PlatformError, match=r"image = dev\.local/nobody:1 is not on this machine and cannot be pulled"):
        ground.platform.preflight(replace(ground.job(), image="dev.local/nobody:1"))


def test_a_port_that_is_taken_is_named_before_anything_starts(ground: Ground) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = int(taken.getsockname()[1])
        with pytest.raises(PlatformError, match=f"host_port = {port} is in use"):
            launcher.start(replace(ground.job(), host_port=port), ground.platform, ground.registry)


def test_a_daemon_that_does_not_answer_is_told_apart_from_everything_else(ground: Ground) -> None:
    silent = TargetService("docker", {**ground.environ, "DOCKER_HOST": "unix:///nowhere/docker.sock"})
    with pytest.raises(PlatformError, match="the Docker daemon does not answer") as refused:
        silent.preflight(ground.job())
    assert "DOCKER_HOST" in refused.value.hint
