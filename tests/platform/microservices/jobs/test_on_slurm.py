"""Slurm for real: Debian's controller and node daemon, started here, run what sbatch was given."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.daemons.slurm_daemons import CPUS
from tests.embedded import Platform as EmbeddedPlatform
from tests.eventually import eventually
from tests.platform.microservices.jobs.contract import (
    IRIS,
    SECRET,
    Ground,
    PlatformContract,
    ProcessGround,
    clean_environment,
    free_ports,
    get,
)

from pilotlight.errors import PlatformError, TimedOut, UsageError
from pilotlight.microservices.jobs import launcher
from pilotlight.microservices.jobs.target_service import TargetService
from pilotlight.microservices.registry.registry_file import registry

pytestmark = pytest.mark.platform
NO_NODE = "PENDING (Resources): no node of the partition has enough free now"
PLACE = {"partition": "cpu", "account": "tests"}


@pytest.fixture
def ground(slurm_cluster: dict[str, str], tmp_path: Path) -> Iterator[Ground]:
    with EmbeddedPlatform(tmp_path / "home", slurm_cluster) as started:
        environ = clean_environment(tmp_path, slurm_cluster, PILOTLIGHT_HOME=str(started.home.root))

        def written() -> str:
            files = [file.read_text(errors="replace") for file in started.home.root.rglob("*") if file.is_file()]
            return "\n".join([told(environ), *files])

        yield ProcessGround(
            TargetService("slurm", environ), environ, registry(environ), PLACE, ports=free_ports(), written=written,
            folder=tmp_path,
        )  # fmt: skip


def told(environ: dict[str, str]) -> str:
    """All that Slurm shows of jobs, their scripts too."""
    jobs = run(environ, "squeue", "--noheader", "--format=%i").split()
    scripts = [run(environ, "scontrol", "write", "batch_script", job, "-") for job in jobs]
    return "\n".join((run(environ, "scontrol", "show", "job", "--details"), *scripts))


def run(environ: dict[str, str], *words: str) -> str:
    return subprocess.run(words, env=environ, capture_output=True, text=True, timeout=60).stdout


class TestSlurm(PlatformContract):
    pass


def test_a_job_that_finds_no_room_waits_with_slurms_reason_and_leaves_the_queue_when_stopped(ground: Ground) -> None:
    jobs = [replace(ground.job(), closed=True) for _ in range(CPUS + 1)]
    entries = [launcher.start(job, ground.platform, ground.registry) for job in jobs]
    try:
        for job, entry in zip(jobs[:CPUS], entries[:CPUS], strict=True):
            ground.until(job, entry, "running")
        while (seen := ground.until(jobs[-1], entries[-1], "pending")).reason != NO_NODE:
            assert seen.reason.startswith("PENDING")
        assert seen.pod_status == "Pending"
        with (
            pytest.raises(PlatformError, match="cannot be reached: PENDING"),
            ground.platform.open_route(jobs[-1].id, entries[-1]),
        ):
            pass
        ground.platform.stop(jobs[-1].id, entries[-1])
        assert ground.platform.status(jobs[-1].id, entries[-1]).state == "gone"
    finally:
        for job, entry in zip(jobs, entries, strict=True):
            ground.platform.stop(job.id, entry)
    assert run(dict(ground.environ), "squeue", "--noheader", "--format=%j") == ""


def test_a_job_of_a_partition_that_is_down_is_taken_back_and_never_registered(ground: Ground) -> None:
    job = replace(ground.job(), options={**PLACE, "partition": "closed"})
    reports: list[str] = []
    with pytest.raises(TimedOut, match=f"{job.id} was pending for 3 s and was stopped: PENDING") as late:
        launcher.start(job, ground.platform, ground.registry, 3.0, reports.append)
    assert (late.value.exit_code, ground.registry.read().entries) == (4, {})
    assert any("PartitionDown" in each for each in reports)
    assert run(dict(ground.environ), "squeue", "--noheader", "--format=%j") == ""


def test_the_entry_has_slurms_number_and_the_port_of_this_machine(ground: Ground) -> None:
    job = ground.job()
    with ground.started(job) as entry:
        assert entry.host_url == f"http://localhost:{entry.host_port}"
        assert run(dict(ground.environ), "squeue", "--noheader", "--format=%i").split() == [entry.platform_job_id]
        ground.until_ready(job, entry)
        assert get(f"{entry.host_url}/v2/health/ready") == 200
        assert ground.platform.status(job.id, entry).pod_name == socket.gethostname().partition(".")[0]


def test_a_stopped_job_leaves_no_file(ground: Ground) -> None:
    job, home = ground.job(), Path(ground.environ["PILOTLIGHT_HOME"])
    with ground.started(job) as entry:
        ground.until_ready(job, entry)
        assert list(home.rglob(f"*{job.id}*"))
    assert not list(home.rglob(f"*{job.id}*"))


def test_a_job_of_an_earlier_release_is_ended_if_it_has_the_jobs_name(ground: Ground) -> None:
    environ, entry = dict(ground.environ), TestSlurm().never_was(ground)
    words = ["sbatch", "--parsable", "--output=/dev/null", "--job-name=earlier", "--wrap=sleep 600"]
    number = run(environ, *words).strip()
    ground.platform.stop("stranger", replace(entry, platform_job_id=number))
    assert run(environ, "squeue", "--noheader", "--format=%i").split() == [number]
    ground.platform.stop("earlier", replace(entry, platform_job_id=number))
    shown = ("squeue", "--noheader", "--format=%i")
    eventually(lambda: run(environ, *shown) == "", "the queue to be empty")


def test_the_command_line_starts_asks_and_stops_a_job(ground: Ground) -> None:
    words = ["start", "pilotlight", "--model-path", IRIS, "--platform", "slurm", "--ready", "-o", "json"]
    words += ["--host-port", str(next(ground.ports))]
    environ = {**ground.environ, "SLURM_PARTITION": "cpu", "SLURM_ACCOUNT": "tests"}
    started = json.loads(ctl(environ, *words))
    assert (started["platform"], started["network_arch"]) == ("slurm", "pilotlight")
    assert get(f"http://localhost:{started['host_port']}/v2/health/ready") == 200
    status = json.loads(ctl(environ, "status", "-o", "json"))
    assert (status["state"], status["pod_status"]) == ("running", "Running")
    ctl(environ, "stop", "--yes")
    assert json.loads(ctl(environ, "list", "-o", "json")) == []


def ctl(environ: dict[str, str], *words: str) -> str:
    command = [str(Path(sys.executable).with_name("platformctl")), "microservice", *words]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert SECRET not in done.stdout + done.stderr
    return done.stdout


def test_an_unknown_partition_is_refused_with_those_that_there_are(ground: Ground) -> None:
    with pytest.raises(UsageError, match="partition = gpu: the cluster has no such partition") as refused:
        ground.platform.preflight(replace(ground.job(), options={**PLACE, "partition": "gpu"}))
    assert refused.value.hint == "there are: cpu closed"


@pytest.mark.parametrize("name", ["partition", "account"])
def test_a_missing_input_is_refused_by_name_and_taken_from_its_variable(ground: Ground, name: str) -> None:
    job = replace(ground.job(), options={key: value for key, value in PLACE.items() if key != name})
    with pytest.raises(UsageError, match=f"slurm needs {name}"):
        ground.platform.preflight(job)
    TargetService("slurm", {**ground.environ, f"SLURM_{name.upper()}": PLACE[name]}).preflight(job)


def test_a_time_that_sbatch_does_not_take_is_refused(ground: Ground) -> None:
    job = replace(ground.job(), options={**PLACE, "partition": "closed", "time": "soon"})
    with pytest.raises(UsageError, match="time = soon, must be in the format of sbatch"), ground.started(job):
        pass
