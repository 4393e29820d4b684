"""Services of the target local, held to what every platform does, and what only processes of this machine have."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.embedded import Platform as Embedded
from tests.eventually import eventually
from tests.platform.microservices.conftest import predictors
from tests.platform.microservices.jobs.contract import (
    IRIS,
    SECRET,
    PlatformContract,
    ProcessGround,
    clean_environment,
    infer,
)
from tests.ports import free_port

from pilotlight.errors import PlatformError, UsageError
from pilotlight.microservices.inference import client
from pilotlight.microservices.jobs import launcher, target_service
from pilotlight.microservices.jobs.host_ports import can_bind
from pilotlight.microservices.jobs.launcher import StartRequest
from pilotlight.microservices.jobs.target_service import TargetService
from pilotlight.microservices.registry.records import Entry, Job
from pilotlight.microservices.registry.registry_file import registry
from pilotlight.targets.local.supervisor.gpus import Device
from pilotlight.wire.unix_socket import SCHEME


@pytest.fixture
def ground(tmp_path: Path, embedded: Embedded) -> ProcessGround:
    environ = clean_environment(tmp_path, embedded.env)
    here = TargetService("local", environ)
    return ProcessGround(here, environ, registry(environ), ports=iter(free_port, 0), folder=tmp_path)


class TestLocal(PlatformContract):
    pass


@pytest.fixture
def running(ground: ProcessGround) -> Iterator[tuple[Job, Entry]]:
    job = ground.job()
    with ground.started(job) as entry:
        yield job, entry


def test_nothing_of_it_is_left_after_a_stop(ground: ProcessGround, embedded: Embedded) -> None:
    job = ground.job()
    with ground.started(job):
        assert list(embedded.home.logs.rglob(f"*{job.id}*"))
        assert predictors(job.id)
    assert not list(embedded.home.root.rglob(f"*{job.id}*"))
    assert not predictors(job.id)


def test_one_of_the_api_listens_on_a_socket_that_its_user_alone_reaches(ground: ProcessGround) -> None:
    request = StartRequest("pilotlight", IRIS, "local", host_port=free_port(), remote=True)
    job = launcher.build_job(replace(request, env={"INFERENCE_HOST": "0.0.0.0"}), ground.environ)
    with ground.started(job) as entry:
        assert entry.host_url.startswith(SCHEME)
        with ground.platform.open_route(job.id, entry) as url:
            assert client.get_document(url, "/status", 10)["state"]
            socket = Path(url.removeprefix(SCHEME))
            assert (socket.stat().st_mode & 0o777, socket.parent.stat().st_mode & 0o777) == (0o600, 0o700)
            assert can_bind(job.host_port)
        (pid,) = predictors(job.id)
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: predictors(job.id) not in ([], [pid]), "another process")
        ground.until(job, entry, "running")
        with ground.platform.open_route(job.id, entry) as other:
            assert other != url
    assert not socket.parent.exists()


def test_one_that_was_killed_is_started_again_at_its_port(ground: ProcessGround, running: tuple[Job, Entry]) -> None:
    job, entry = running
    (pid,) = predictors(job.id)
    assert os.getsid(pid) != os.getsid(0)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: predictors(job.id) not in ([], [pid]), "another process")
    ground.until_ready(job, entry)
    assert infer(entry.host_url)["outputs"]


def test_its_environment_has_the_three_variables_and_never_the_two(running: tuple[Job, Entry]) -> None:
    job, _ = running
    (pid,) = predictors(job.id)
    lines = Path(f"/proc/{pid}/environ").read_text().split("\0")
    variables = dict(line.split("=", 1) for line in lines if "=" in line)
    assert variables["TAO_EXECUTION_BACKEND"] == "local-docker"
    assert variables["TAO_API_JOB_ID"] == job.id
    assert variables["CLOUD_BASED"] == "False"
    assert not variables.keys() & {"TAO_LOGGING_SERVER_URL", "TAO_ADMIN_KEY"}


def test_a_foreign_image_is_refused_with_the_platforms_that_run_it(ground: ProcessGround) -> None:
    job = replace(ground.job(), image="nvcr.io/nvidia/tao/tao-toolkit:7")
    with pytest.raises(UsageError) as refused:
        ground.platform.preflight(job)
    assert "--platform docker" in refused.value.hint
    assert "--platform kubernetes" in refused.value.hint


def test_a_model_that_is_not_there_is_refused_before_anything_starts(ground: ProcessGround, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        ground.platform.preflight(replace(ground.job(), model_path=str(tmp_path / "none")))
    with pytest.raises(UsageError, match="must be a directory"):
        ground.platform.preflight(replace(ground.job(), folder=True))


def test_a_secret_that_a_model_writes_is_not_shown(ground: ProcessGround) -> None:
    ground.model_path = str(Path(ground.telling().model_path))
    (Path(ground.model_path) / "1/model.py").write_text(
        "import os\nprint('no access with', os.environ['HF_TOKEN'], flush=True)\nos._exit(3)\n"
    )
    job = ground.job()
    with ground.started(job) as entry:
        seen = ground.until(job, entry, "failed")
    assert SECRET not in repr(seen)
    assert "no access with <HF_TOKEN>" in seen.reason


def test_one_that_names_its_gpus_shares_them(ground: ProcessGround, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control process has none to give: another would wait for one."""
    monkeypatch.setattr(target_service, "find_devices", lambda: [Device(0, 9)])
    job = replace(ground.job(), host_port=free_port())
    job = replace(job, env={**job.env, "CUDA_VISIBLE_DEVICES": "0"})
    entry = ground.platform.start(ground.platform.preflight(job))
    try:
        assert ground.platform.status(job.id, entry).state == "running"
        (pid,) = predictors(job.id)
        assert b"CUDA_VISIBLE_DEVICES=0" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    finally:
        ground.platform.stop(job.id, entry)


def test_gpus_that_the_machine_has_not_are_refused(ground: ProcessGround, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_service, "find_devices", lambda: [Device(0, 9), Device(1, 1)])
    with pytest.raises(PlatformError, match="num_gpus = 3, but this machine has 2"):
        ground.platform.preflight(replace(ground.job(), num_gpus=3))
