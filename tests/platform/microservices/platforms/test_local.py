"""Processes of this machine, held to what every platform does, and what only processes can get wrong."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.platform.microservices.platforms.contract import (
    IRIS,
    SECRET,
    Ground,
    PlatformContract,
    clean_environment,
    infer,
)
from tests.ports import free_port

from pilotlight.errors import PlatformError, UsageError
from pilotlight.microservices.inference import client
from pilotlight.microservices.jobs import launcher
from pilotlight.microservices.jobs.launcher import StartRequest
from pilotlight.microservices.platforms import platform
from pilotlight.microservices.platforms.host_ports import can_bind
from pilotlight.microservices.platforms.local import Local
from pilotlight.microservices.registry.records import Entry, Job
from pilotlight.microservices.registry.registry_file import registry
from pilotlight.targets.local.supervisor.gpus import Device
from pilotlight.wire.unix_socket import SCHEME


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    home = {"PILOTLIGHT_HOME": str(tmp_path / "home"), "TAO_ADMIN_KEY": "never", "TAO_LOGGING_SERVER_URL": "never"}
    environ = clean_environment(tmp_path, **home)
    return Ground(platform("local", environ), environ, registry(environ), ports=iter(free_port, 0))


class TestLocal(PlatformContract):
    pass


@pytest.fixture
def running(ground: Ground) -> Iterator[tuple[Job, Entry]]:
    job = ground.job()
    with ground.started(job) as entry:
        yield job, entry


def pid_of(entry: Entry) -> int:
    assert entry.platform_job_id
    return int(entry.platform_job_id.partition(":")[0])


def files_of(ground: Ground, job: Job) -> list[Path]:
    return list((Path(ground.environ["PILOTLIGHT_HOME"]) / "microservices").glob(f"{job.id}*"))


def test_nothing_of_it_is_left_after_a_stop(ground: Ground) -> None:
    job = ground.job()
    with ground.started(job):
        assert files_of(ground, job)
    assert files_of(ground, job) == []


def test_an_orgs_model_is_served_as_it_was_at_the_start_and_its_copy_is_removed(ground: Ground, tmp_path: Path) -> None:
    model = tmp_path / "evil/model.onnx"
    model.parent.mkdir()
    shutil.copy(IRIS, model)
    request = StartRequest("pilotlight", str(model), "local", host_port=free_port(), isolation="data")
    job = launcher.build_job(request, ground.environ)
    with ground.started(job) as entry:  # it listens before it reads its model
        model.write_text("another")
        ground.until_ready(job, entry)
        with ground.platform.open_route(job.id, entry) as url:
            assert len(infer(url)["outputs"]) > 0
    assert files_of(ground, job) == []


def test_a_link_in_place_of_an_orgs_model_is_refused_and_leaves_nothing(ground: Ground, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").symlink_to(IRIS)
    request = StartRequest("pilotlight", str(tmp_path / "model.onnx"), "local", host_port=free_port(), isolation="data")
    job = launcher.build_job(request, ground.environ)
    with pytest.raises(UsageError, match=r"model_path = .*model\.onnx, cannot be copied for its start"):
        launcher.start(job, ground.platform, ground.registry)
    assert files_of(ground, job) == []


def test_one_of_the_api_listens_on_a_socket_that_its_user_alone_reaches_and_that_goes_with_it(ground: Ground) -> None:
    request = StartRequest("pilotlight", IRIS, "local", host_port=free_port(), remote=True)
    job = launcher.build_job(replace(request, env={"INFERENCE_HOST": "0.0.0.0"}), ground.environ)
    with ground.started(job) as entry, ground.platform.open_route(job.id, entry) as url:
        assert url == entry.host_url
        assert client.get_document(url, "/status", 10)["state"]
        socket = Path(url.removeprefix(SCHEME))
        assert (socket.stat().st_mode & 0o777, socket.parent.stat().st_mode & 0o777) == (0o600, 0o700)
        assert can_bind(job.host_port)
    assert files_of(ground, job) == []


def test_another_process_that_got_its_number_later_is_left_alone(ground: Ground, running: tuple[Job, Entry]) -> None:
    job, entry = running
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        assert entry.platform_job_id
        _, boot, ticks = entry.platform_job_id.split(":")
        confused = replace(entry, platform_job_id=f"{stranger.pid}:{boot}:{ticks}")
        assert ground.platform.status(job.id, confused).state == "failed"
        ground.platform.stop(job.id, confused)
        assert stranger.poll() is None
        stranger.communicate(b"\n")
    assert ground.platform.status(job.id, entry).state == "running"


def test_one_that_was_killed_is_seen_as_failed_by_that_signal(ground: Ground, running: tuple[Job, Entry]) -> None:
    job, entry = running
    os.kill(pid_of(entry), signal.SIGKILL)
    end = time.monotonic() + 60
    while "SIGKILL" not in (seen := ground.platform.status(job.id, entry)).reason:
        assert time.monotonic() < end, seen
        time.sleep(0.05)
    assert (seen.state, seen.pod_status) == ("failed", "Failed")


def test_what_ends_the_jobs_of_a_terminal_does_not_reach_it(running: tuple[Job, Entry]) -> None:
    assert os.getsid(pid_of(running[1])) != os.getsid(0)


def test_its_environment_has_the_three_variables_and_never_the_two(running: tuple[Job, Entry]) -> None:
    job, entry = running
    lines = Path(f"/proc/{pid_of(entry)}/environ").read_text().split("\0")
    variables = dict(line.split("=", 1) for line in lines if "=" in line)
    assert variables["TAO_EXECUTION_BACKEND"] == "local-docker"
    assert variables["TAO_API_JOB_ID"] == job.id
    assert variables["CLOUD_BASED"] == "False"
    assert not variables.keys() & {"TAO_LOGGING_SERVER_URL", "TAO_ADMIN_KEY"}


def test_a_foreign_image_is_refused_with_the_platforms_that_run_it(ground: Ground) -> None:
    job = replace(ground.job(), image="nvcr.io/nvidia/tao/tao-toolkit:7")
    with pytest.raises(UsageError) as refused:
        ground.platform.preflight(job)
    assert "--platform docker" in refused.value.hint
    assert "--platform kubernetes" in refused.value.hint


def test_a_model_that_is_not_there_is_refused_before_anything_starts(ground: Ground, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        ground.platform.preflight(replace(ground.job(), model_path=str(tmp_path / "none")))
    with pytest.raises(UsageError, match="must be a directory"):
        ground.platform.preflight(replace(ground.job(), folder=True))


def test_its_log_is_its_users_alone_though_its_command_has_no_umask(ground: Ground, running: tuple[Job, Entry]) -> None:
    modes = {path.stat().st_mode & 0o777 for path in files_of(ground, running[0]) if path.suffix == ".log"}
    assert modes == {0o600}
    assert Path(ground.environ["PILOTLIGHT_HOME"]).stat().st_mode & 0o777 == 0o700


def test_a_secret_that_a_program_writes_is_not_shown(ground: Ground) -> None:
    job = replace(ground.job(), command='umask 0 && echo "no access with $HF_TOKEN" && exit 3')
    with ground.started(job) as entry:
        seen = ground.until(job, entry, "failed")
    assert SECRET not in repr(seen)
    assert "no access with <HF_TOKEN>" in seen.reason


def test_of_several_gpus_it_gets_those_that_are_used_least(ground: Ground) -> None:
    ground.platform = Local(ground.environ, lambda: [Device(0, 9), Device(1, 1), Device(2, 5)])
    job = replace(ground.job(), num_gpus=2)
    with ground.started(job) as entry:
        variables = Path(f"/proc/{pid_of(entry)}/environ").read_text().split("\0")
    assert "CUDA_VISIBLE_DEVICES=1,2" in variables
    with pytest.raises(PlatformError, match="num_gpus = 4: it needs 4 GPUs, and this machine has 3"):
        ground.platform.preflight(replace(ground.job(), num_gpus=4))
