"""Slurm for real: Debian's controller and node daemon, started here, run what sbatch was given."""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest
from msgspec.structs import replace
from tests.daemons.slurm_daemons import CPUS
from tests.platform.microservices.platforms.contract import (
    IRIS,
    SECRET,
    Ground,
    PlatformContract,
    clean_environment,
    free_ports,
    get,
)

from pilotlight.errors import PlatformError, UsageError
from pilotlight.microservices.jobs import launcher
from pilotlight.microservices.platforms import platform
from pilotlight.microservices.registry.registry_file import registry

pytestmark = pytest.mark.platform
NO_NODE = "PENDING (Resources): no node of the partition has enough free now"
PLACE = {"partition": "cpu", "account": "tests"}


@pytest.fixture
def ground(slurm_cluster: dict[str, str], tmp_path: Path) -> Ground:
    environ = clean_environment(tmp_path, slurm_cluster)
    place = platform("slurm", environ)
    return Ground(place, environ, registry(environ), PLACE, ports=free_ports(), written=lambda: told(environ))


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
    idle = replace(ground.job(), command="umask 0 && exec sleep 600 # pilotlight_predictor", closed=True)
    jobs = [replace(idle, id=str(uuid4()), host_port=next(ground.ports)) for _ in range(CPUS + 1)]
    entries = [launcher.start(job, ground.platform, ground.registry) for job in jobs]
    try:
        for job, entry in zip(jobs[:CPUS], entries[:CPUS], strict=True):
            ground.until(job, entry, "running")
        while (seen := ground.until(jobs[-1], entries[-1], "pending")).reason != NO_NODE:
            assert seen.reason.startswith("PENDING")
        assert seen.pod_status == "Pending"
        with (
            pytest.raises(PlatformError, match="cannot be asked: PENDING"),
            ground.platform.open_route(jobs[-1].id, entries[-1]),
        ):
            pass
        ground.platform.stop(jobs[-1].id, entries[-1])
        assert ground.platform.status(jobs[-1].id, entries[-1]).reason.startswith("CANCELLED")
    finally:
        for job, entry in zip(jobs, entries, strict=True):
            ground.platform.stop(job.id, entry)


def test_a_stop_leaves_neither_log_nor_process_nor_tunnel(ground: Ground) -> None:
    job = replace(ground.job(), command=f"umask 0 && exec sleep 600 # pilotlight_predictor {uuid4()}")
    with ground.started(job) as entry:
        ground.until(job, entry, "running")
    home = Path(ground.environ["HOME"])
    assert not [path for path in home.rglob("*") if job.id in path.name]
    assert job.id not in run(dict(ground.environ), "squeue", "--noheader", "--format=%j", "--states=running,completing")


def test_a_job_of_another_name_with_the_same_number_is_neither_seen_nor_cancelled(ground: Ground) -> None:
    job = replace(ground.job(), command="umask 0 && exec sleep 600 # pilotlight_predictor")
    with ground.started(job) as entry:
        ground.until(job, entry, "running")
        stranger = str(uuid4())
        assert ground.platform.status(stranger, entry).state == "gone"
        ground.platform.stop(stranger, entry)
        assert ground.platform.status(job.id, entry).state == "running"


@pytest.mark.parametrize("container", ["pyxis", "apptainer"])
def test_variables_and_secrets_reach_a_container_on_the_node(ground: Ground, tmp_path: Path, container: str) -> None:
    """Stand-ins take the containers' flags away and run the command: srun's as a step of the real Slurm."""
    real, libraries = shutil.which("srun", path=ground.environ["PATH"]), ground.environ["LD_LIBRARY_PATH"]
    kept = 'for word; do case "$word" in --container-*) ;; *) words+=("$word") ;; esac; done'
    plain = {
        "srun": f'{kept}; LD_LIBRARY_PATH={libraries} exec {real} "${{words[@]}}"',
        "apptainer": 'exec sh -c "${@: -1}"',
    }
    (tmp_path / "bin").mkdir()
    for name, text in plain.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n[[ $* == *pass-this* ]] || exit 2\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    environ = {**ground.environ, "PATH": f"{tmp_path / 'bin'}:{ground.environ['PATH']}"}
    place = platform("slurm", environ)
    said = "echo got $PLAIN $(printf %s $HF_TOKEN | sha256sum) >&2; exit 3"
    job = replace(
        ground.job(), image="nvcr.io/nvidia/pass-this:1", env={"PLAIN": "words"}, command=said,
        options={**PLACE, "container": container},
    )  # fmt: skip
    elsewhere = Ground(place, environ, ground.registry, PLACE)
    with elsewhere.started(replace(job, port=next(ground.ports))) as entry:
        seen = elsewhere.until(job, entry, "failed")
    digest = hashlib.sha256(SECRET.encode()).hexdigest()
    assert [line for line in seen.tail if line.startswith(f"got words {digest}")], seen


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
    with pytest.raises(UsageError, match=f"{name} is missing"):
        ground.platform.preflight(job)
    platform("slurm", {**ground.environ, f"SLURM_{name.upper()}": PLACE[name]}).preflight(job)


def test_what_slurm_refuses_is_said_in_its_words_without_secrets(ground: Ground) -> None:
    job = replace(ground.job(), options={**PLACE, "partition": "closed", "time": SECRET[:8]})
    with pytest.raises(PlatformError, match=r"sbatch failed: .*time") as refused:
        ground.platform.start(job)
    assert SECRET not in str(refused.value)
