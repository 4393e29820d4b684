"""Replicas as jobs of a real Slurm: Debian's controller and node daemon run what the supervisor starts."""

import json
import os
import shutil
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.daemons.installed_programs import install
from tests.daemons.slurm_daemons import CPUS
from tests.eventually import eventually_async
from tests.platform.gateway.linked import in_loop
from tests.platform.targets.local.runs import replica as a_replica
from tests.platform.targets.local.supervisor.supervisor_harness import IRIS, Stage, launch, lines
from tests.ports import free_port

from pilotlight.targets.local.manifests.service_spec_types import Fetch, Probe
from pilotlight.targets.local.supervisor.process_launcher import ProcessLauncher
from pilotlight.targets.local.supervisor.replica_record import Launch, Replica
from pilotlight.targets.slurm.launcher import SlurmLauncher
from pilotlight.wire.http_client import request

pytestmark = pytest.mark.platform
OPTIONS = {"partition": "cpu", "address": "tunnel"}
SECRET = "planted-value-that-no-argument-may-hold"


def stage(folder: Path, environ: dict[str, str]) -> Stage:
    return Stage(folder, launchers={"slurm": lambda processes: SlurmLauncher(processes, environ)})


def job(replica: str = "iris-predictor-1f3a9c07-x7k2q", **fields: Any) -> Launch:
    order = launch(replica, **{"options": OPTIONS, **fields})
    return replace(order, revision=replace(order.revision, target="slurm"))


def run(environ: dict[str, str], *words: str) -> str:
    return subprocess.run(words, env=environ, capture_output=True, text=True, timeout=60).stdout


def states(environ: dict[str, str]) -> list[str]:
    return run(environ, "squeue", "--noheader", "--format=%j %T").splitlines()


async def answers(replica: Replica) -> bool:
    return (await request(replica.port, "/v2/health/ready", 5.0, host=replica.host)).ok


@in_loop
async def test_a_replica_is_pending_then_ready_and_drains_without_a_kill(
    slurm_cluster: dict[str, str], tmp_path: Path
) -> None:
    async with stage(tmp_path, slurm_cluster) as there:
        replica = await there.start(job(env={**IRIS, "HF_TOKEN": SECRET}))
        assert there.states() == ["pending", "starting", "ready"]
        assert (replica.launcher, replica.node) == ("slurm", os.uname().nodename)
        assert await answers(replica)
        assert await SlurmLauncher(ProcessLauncher(there.home, ""), slurm_cluster).running() == [replica.id]
        shown = run(slurm_cluster, "scontrol", "show", "job", "--details", replica.handle)
        script = run(slurm_cluster, "scontrol", "write", "batch_script", replica.handle, "-")
        assert SECRET not in shown + script
        assert "pilotlight_predictor" in script
        there.supervisor.drain(replica.id, 30.0)
        await there.until("exited")
        assert (there.told[-1].exit_code, there.told[-1].crashed, there.told[-1].reason) == (0, False, "")
        shown = run(slurm_cluster, "scontrol", "show", "job", replica.handle)
        assert "JobState=COMPLETED" in shown
        assert [line for line in lines(replica.log) if "listening" in line]
        await eventually_async(lambda: not list((there.home.run / "slurm").iterdir()))


@in_loop
async def test_a_job_that_must_wait_is_pending_with_slurms_reason_and_leaves_the_queue_when_drained(
    slurm_cluster: dict[str, str], tmp_path: Path
) -> None:
    async with stage(tmp_path, slurm_cluster) as there:
        await there.start(job("first", cpu_request=float(CPUS)))
        there.told.clear()
        there.supervisor.launch(job("second"))
        await eventually_async(lambda: there.told and "PENDING (Resources): no node" in there.told[-1].reason)
        assert {replica.state for replica in there.told if replica.id == "second"} == {"pending"}
        there.supervisor.drain("second", 60.0)
        assert not (await there.until("exited", "second")).crashed
        assert [line.split()[0] for line in states(slurm_cluster)] == ["first"]


@in_loop
async def test_the_next_control_process_goes_on_with_running_and_pending_jobs(
    slurm_cluster: dict[str, str], tmp_path: Path
) -> None:
    before = stage(tmp_path, slurm_cluster)
    await before.__aenter__()
    first = await before.start(job("first", cpu_request=float(CPUS)))
    before.supervisor.launch(job("second"))
    await eventually_async(lambda: before.supervisor.replicas()[1].handle)
    records = list(before.supervisor.replicas())
    await before.supervisor.close(leave_running=True)
    async with stage(tmp_path, slurm_cluster) as after:
        after.supervisor.adopt(records)
        assert await answers(first)
        run(slurm_cluster, "scancel", first.handle)
        ended = await after.until("exited", "first")
        assert f"Slurm's job {first.handle}: CANCELLED" in ended.reason
        second = await after.until("ready", "second")
        assert second.handle == records[1].handle
        assert await answers(second)


@in_loop
async def test_jobs_without_a_record_are_cancelled_and_those_of_another_home_are_not(
    slurm_cluster: dict[str, str], tmp_path: Path
) -> None:
    async with stage(tmp_path / "other", slurm_cluster) as other:
        await other.start(job("other"))
        lost = stage(tmp_path, slurm_cluster)
        await lost.__aenter__()
        await lost.start(job("lost"))
        await lost.supervisor.close(leave_running=True)
        async with stage(tmp_path, slurm_cluster) as there:
            await there.start(job("mine"))
            await eventually_async(lambda: not any(line.startswith("lost") for line in states(slurm_cluster)))
            assert sorted(states(slurm_cluster)) == ["mine RUNNING", "other RUNNING"]


@in_loop
async def test_a_job_that_fails_says_why_and_what_slurm_refuses_is_said_in_its_words(
    slurm_cluster: dict[str, str], tmp_path: Path
) -> None:
    async with stage(tmp_path, slurm_cluster) as there:
        there.supervisor.launch(job("bad", args=("--no-such-flag",)))
        await there.until("exited", "bad")
        assert (there.told[-1].exit_code, there.told[-1].crashed) == (2, True)
        assert "--no-such-flag" in there.told[-1].reason
        there.supervisor.launch(job("nowhere", options={"partition": "none"}))
        await there.until("exited", "nowhere")
        assert "sbatch failed: " in there.told[-1].reason
        assert "Invalid partition" in there.told[-1].reason


@in_loop
async def test_while_the_controller_is_silent_a_replica_stays_as_it_was(
    slurm_cluster: dict[str, str], tmp_path: Path
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    silent = tmp_path / "silent"
    error = 'echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1'
    real = f'PATH={slurm_cluster["PATH"]} exec squeue "$@"'
    (programs / "squeue").write_text(f"#!/bin/sh\nif [ -e {silent} ]; then {error}; fi\n{real}\n")
    (programs / "squeue").chmod(0o755)
    async with stage(tmp_path, {**slurm_cluster, "PATH": f"{programs}:{slurm_cluster['PATH']}"}) as there:
        ready = await there.start(job("ready"))
        silent.touch()
        there.supervisor.launch(job("later"))
        await eventually_async(lambda: "Unable to contact slurm controller" in there.told[-1].reason)
        assert there.told[-1].state == "pending"
        assert (await answers(ready), there.supervisor.replicas()[0].state) == (True, "ready")
        silent.unlink()
        await there.until("ready", "later")


@in_loop
async def test_a_job_on_another_node_is_reached_by_a_tunnel_that_ends_with_it(
    slurm_cluster: dict[str, str], tmp_path: Path
) -> None:
    """The node calls itself otherwise, so it is another machine; ssh to it leads to this one."""
    programs = install(tmp_path / "bin", "ssh")
    node = os.uname().nodename
    (programs / "scontrol").write_text(
        f'#!/bin/sh\nPATH={slurm_cluster["PATH"]} scontrol "$@" | sed s/NodeHostName={node}/NodeHostName=far/\n'
    )
    (programs / "scontrol").chmod(0o755)
    environ = {**slurm_cluster, "PATH": f"{programs}:{slurm_cluster['PATH']}", "SSH_STAND_IN": node}
    async with stage(tmp_path, environ) as there:
        replica = await there.start(job("far"))
        assert replica.host.endswith("/near")
        assert await answers(replica)
        [state] = (there.home.run / "tunnels").glob("*.json")
        pid = json.loads(state.read_text())["holder"][0]
        os.kill(pid, signal.SIGKILL)
        await eventually_async(lambda: state.exists() and json.loads(state.read_text())["holder"][0] != pid)
        await eventually_async(lambda: answers(replica))
        there.supervisor.drain("far", 60.0)
        await there.until("exited", "far")
        await eventually_async(lambda: not state.exists())


@in_loop
async def test_another_image_runs_in_the_clusters_container_with_its_model_fetched_and_is_reached_at_its_port(
    slurm_cluster: dict[str, str], tmp_path: Path
) -> None:
    """A stand-in takes the container's flags away and runs the command, with the source of its mount in FETCHED."""
    programs, port = tmp_path / "bin", free_port()
    programs.mkdir()
    stand_in = 'FETCHED=$(echo "$*" | grep -o "[^ ]*:/mnt/models" | cut -d: -f1); shift 4; export FETCHED; exec "$@"'
    (programs / "apptainer").write_text(f"#!/bin/bash\n{stand_in}\n")
    (programs / "apptainer").chmod(0o755)
    fetch = Fetch(f"file://{IRIS['INFERENCE_MODEL_PATH']}", "/mnt/models")
    serve = f'ls $FETCHED; echo "token $(printf %s $HF_TOKEN | wc -c)"; exec python3 -m http.server {port}'
    order = job(
        "foreign", image="nvcr.io/nvidia/tritonserver:25", command=("/bin/sh", "-c", serve),
        readiness=Probe("", port, kind="tcp"), env={"HF_TOKEN": SECRET}, fetches=(fetch,),
        options={**OPTIONS, "container": "apptainer"},
    )  # fmt: skip
    container = replace(order.revision.container, port=port)
    order = replace(order, revision=replace(order.revision, container=container))
    async with stage(tmp_path, {**slurm_cluster, "PATH": f"{programs}:{slurm_cluster['PATH']}"}) as there:
        replica = await there.start(order)
        assert (replica.host, replica.port) == ("127.0.0.1", port)
        assert {"model.onnx", f"token {len(SECRET)}"} <= set(lines(replica.log))
        there.supervisor.drain("foreign", 30.0)
        await there.until("exited", "foreign")


@in_loop
async def test_adopted_jobs_that_slurm_does_not_know_have_ended_without_a_failure(
    slurm_cluster: dict[str, str], tmp_path: Path
) -> None:
    programs = tmp_path / "bin"  # without sacct
    programs.mkdir()
    for name in ("squeue", "scontrol", "scancel", "sinfo", "sbatch"):
        (programs / name).symlink_to(str(shutil.which(name, path=slurm_cluster["PATH"])))
    async with stage(tmp_path, {**slurm_cluster, "PATH": str(programs)}) as there:
        for name, handle in (("forgotten", "99999"), ("unsubmitted", "")):
            there.supervisor.adopt([a_replica("iris-predictor-1", "ready", name, launcher="slurm", handle=handle)])
        forgotten, unsubmitted = [await there.until("exited", name) for name in ("forgotten", "unsubmitted")]
        assert (forgotten.reason, forgotten.crashed) == ("Slurm no longer knows its job 99999", False)
        assert (unsubmitted.reason, unsubmitted.crashed) == (
            "the control process exited before it was submitted", False,
        )  # fmt: skip
