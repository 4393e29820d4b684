"""A replica as a Slurm job: variables, ports, mounts, fetches, and where its server is reached. No daemon."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.platform.targets.local.runs import replica
from tests.platform.targets.local.supervisor.supervisor_harness import launch

from pilotlight.errors import UsageError
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.manifests.service_spec_types import Fetch, Mount
from pilotlight.targets.local.supervisor.launcher import ReplicaAddress
from pilotlight.targets.local.supervisor.process_launcher import ProcessLauncher
from pilotlight.targets.slurm.job import (
    Note,
    home_key,
    job_folder,
    read_note,
    replica_job,
    replica_route,
    scancel_arguments,
)
from pilotlight.targets.slurm.launcher import SlurmLauncher
from pilotlight.targets.slurm.queue import Queued
from pilotlight.targets.slurm.script import PORTS, SlurmJob, sbatch_arguments, script

HOME = Home(Path("/shared/home"))
FOLDER = job_folder(HOME, "r")
RUNNING = Queued("7", "RUNNING", "node1", "r")


def made(options: dict[str, str] | None = None, extra: dict[str, str] | None = None, **container: Any) -> Any:
    order = launch("r", options={"partition": "cpu", **(options or {})}, **container)
    order = replace(order, extra_env=extra or {}, secrets={"key": "of the service"})
    job, values = replica_job(order, replica("r", log="/log"), HOME, "http://gateway", "/opt/python")
    return job, values


def foreign(**container: Any) -> tuple[SlurmJob, dict[str, str]]:
    options = container.pop("options", {"container": "apptainer"})
    job, values = made(options, image="nvcr.io/nvidia/tritonserver:25", **container)
    return job, values


def test_the_predictor_listens_on_sockets_of_a_folder_of_its_own_and_inherits_nothing() -> None:
    job, values = made(extra={"POD_NAME": "r"})
    assert {values[name] for name in ("INFERENCE_HOST", "INFERENCE_GRPC_ADDRESS")} == {f"unix:{FOLDER}"}
    assert (values["POD_NAME"], values["INFERENCE_MODEL_NAME"]) == ("r", "iris")
    assert job.exported[:4] == ("HOME", "LANG", "PATH", "USER")
    assert set(job.exported[4:]) == set(values)
    assert script(job).splitlines()[-1] == "exec /opt/python -P -m pilotlight_predictor"


def test_no_value_of_a_variable_is_in_the_arguments_or_the_script() -> None:
    job, values = made(env={"HF_TOKEN": "planted", "LD_PRELOAD": "lib.so"})
    assert values["HF_TOKEN"] == "planted"
    assert "planted" not in script(job) + " ".join(sbatch_arguments(job))
    assert "LD_PRELOAD" not in values, "it would change sbatch itself"
    assert "export LD_PRELOAD=lib.so" in script(job)


def test_limits_and_gpus_are_requested_of_slurm_which_chooses_the_devices() -> None:
    job, values = made(gpus=2, cpu_limit=1.5, memory_limit=(1 << 30) + 1)
    words = sbatch_arguments(job)
    assert {"--gres=gpu:2", "--cpus-per-task=2", "--mem=1025M", "--no-requeue"} <= set(words)
    assert "CUDA_VISIBLE_DEVICES" not in values
    alone, without = made()
    assert without["CUDA_VISIBLE_DEVICES"] == ""
    assert not [word for word in sbatch_arguments(alone) if word.startswith(("--gres", "--cpus", "--mem"))]


def test_with_the_address_of_a_node_it_listens_on_ports_by_the_number_of_its_job() -> None:
    job, values = made({"address": "node"})
    assert values["INFERENCE_HOST"] == "0.0.0.0"
    text = job.prologue.partition("\n")[2] + "echo $INFERENCE_HTTP_PORT $INFERENCE_GRPC_PORT $INFERENCE_METRICS_PORT\n"
    done = subprocess.run(["bash", "-s"], input=text, env={"SLURM_JOB_ID": "3300"}, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "29900 29901 29902"
    note = read_note(job.comment)
    assert note is not None
    address, forwards = replica_route(note, RUNNING._replace(id="3300"), FOLDER, here=False)
    assert (address.host, dict(address.ports), forwards) == ("node1", {8080: 29900, 8081: 29901, 8082: 29902}, ())
    assert 29902 in PORTS


def test_another_image_keeps_its_port_command_and_variables() -> None:
    secret = (("TOKEN", "iris", "key"),)
    job, values = foreign(command=("tritonserver",), args=("--port", "1"), env={"A": "b"}, secret_env=secret)
    assert values == {"A": "b", "TOKEN": "of the service"}
    assert "port=8080\n" in job.prologue
    last = "exec apptainer exec docker://nvcr.io/nvidia/tritonserver:25 tritonserver --port 1"
    assert script(job).splitlines()[-1] == last
    with pytest.raises(UsageError, match="needs one of"):
        foreign(options={})


def test_models_are_fetched_in_the_job_with_variables_of_their_own(tmp_path: Path) -> None:
    fetch = Fetch("s3://models/iris", "/mnt/models", {"AWS_SECRET_ACCESS_KEY": "planted"})
    job, values = foreign(fetches=(fetch,), mounts=(Mount("/data", "/in", True),), env={})
    assert values == {"PILOTLIGHT_FETCH0_AWS_SECRET_ACCESS_KEY": "planted"}
    assert "planted" not in script(job)
    assert job.mounts == (f"{FOLDER}/0:/mnt/models:ro", "/data:/in:ro")
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\necho fetched\necho "$@" $AWS_SECRET_ACCESS_KEY >&2\nexit $CODE\n')
    program.chmod(0o755)
    text = job.prologue.partition('port $port"\n')[2].replace("/opt/python", str(program)) + "echo after\n"
    for code, last in (("0", "planted"), ("3", f"fetch s3://models/iris {FOLDER}/0 planted")):
        environ = {**values, "CODE": code}
        done = subprocess.run(["bash", "-s"], input=text, env=environ, capture_output=True, text=True)
        assert (done.stdout + done.stderr).splitlines()[-1].endswith(last)
        assert "fetched" not in done.stdout, "the log is the server's"
        assert done.returncode == (97 if code == "3" else 0)


def test_our_image_in_a_container_sees_its_sockets_cache_and_models() -> None:
    job, _ = made({"container": "pyxis"}, args=("--port", "1", "--model-name", "x"))
    assert f"{FOLDER}:{FOLDER}" in job.mounts
    assert f"{HOME.models}:{HOME.models}:ro" in job.mounts
    assert script(job).splitlines()[-1].endswith("--container-entrypoint --model-name x")


def test_a_microservice_in_a_container_sees_neither_the_cache_nor_models_of_others() -> None:
    env = {"INFERENCE_MICROSERVICE": "true", "INFERENCE_MODEL_PATH": f"{HOME.models}/ab1/content/model.onnx"}
    job, values = made({"container": "pyxis"}, env=env)
    assert job.mounts == (f"{FOLDER}:{FOLDER}", f"{HOME.models}/ab1:{HOME.models}/ab1:ro")
    assert values["PILOTLIGHT_CACHE_DIR"] == f"{FOLDER}/cache"
    assert made(env=env)[1]["PILOTLIGHT_CACHE_DIR"] == str(HOME.cache), "the operator's own process"


@pytest.mark.parametrize(
    ("note", "here", "host", "forwards"),
    [
        (Note("k"), True, f"unix:{FOLDER}", ()),
        (
            Note("k"), False, f"unix:{FOLDER}/near",
            tuple((f"{FOLDER}/near/{port}", f"{FOLDER}/{port}") for port in (8080, 8081, 8082)),
        ),
        (Note("k", "apptainer", 8000), True, "127.0.0.1", ()),
        (Note("k", "apptainer", 8000), False, f"unix:{FOLDER}/near", ((f"{FOLDER}/near/8000", 8000),)),
        (Note("k", "apptainer", 8000, "node"), False, "node1", ()),
    ],
)  # fmt: skip
def test_where_a_running_job_is_reached(note: Note, here: bool, host: str, forwards: tuple[Any, ...]) -> None:
    address, found = replica_route(note, RUNNING, FOLDER, here=here)
    assert (address.host, dict(address.ports), found) == (host, {}, forwards)


def test_a_port_of_this_machine_leads_to_the_job_wherever_it_runs() -> None:
    """Our predictor listens on it where it runs here; else a tunnel leads from it to the sockets of the job."""
    note, own = Note("k", host_port=18083), {8080: 18083, 8082: 18083}
    assert replica_route(note, RUNNING, FOLDER, here=True) == (ReplicaAddress("127.0.0.1", own), ())
    tunnel = ((18083, f"{FOLDER}/8080"),)
    assert replica_route(note, RUNNING, FOLDER, here=False) == (ReplicaAddress("127.0.0.1", own), tunnel)
    image = Note("k", "apptainer", 8000, host_port=18083)
    assert replica_route(image, RUNNING, FOLDER, here=True) == (ReplicaAddress("127.0.0.1", {}), ())
    assert replica_route(image, RUNNING, FOLDER, here=False) == (
        ReplicaAddress("127.0.0.1", {8000: 18083}), ((18083, 8000),),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("host_ip", "here", "listens"),
    [("0.0.0.0", True, "0.0.0.0 18083"), ("", True, "127.0.0.1 18083"), ("0.0.0.0", False, f"unix:{FOLDER} 8080")],
)
def test_the_script_listens_on_the_port_only_on_the_machine_that_submits(
    host_ip: str, here: bool, listens: str
) -> None:
    job, values = made(env={"INFERENCE_MICROSERVICE": "true"}, host_port=18083, host_ip=host_ip)
    text = job.prologue.partition("\n")[2] + 'echo "$INFERENCE_HOST $INFERENCE_HTTP_PORT"\n'
    environ = {"PATH": os.environ["PATH"], "SLURM_SUBMIT_HOST": os.uname().nodename if here else "login", **values}
    done = subprocess.run(["bash", "-s"], input=text, env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == listens


def test_a_secret_that_the_script_would_have_to_set_is_refused(tmp_path: Path) -> None:
    launcher = SlurmLauncher(ProcessLauncher(Home(tmp_path), ""), {})
    order = launch("r", options={"partition": "cpu"}, secret_env=(("SLURM_JWT", "iris", "key"),))
    with pytest.raises(UsageError, match="env SLURM_JWT: sbatch reads this variable"):
        launcher.check(order.revision)


def test_a_host_ip_is_one_word_of_the_script(tmp_path: Path) -> None:
    job, _ = made(env={"INFERENCE_MICROSERVICE": "true"}, host_port=18083, host_ip=f"::1; touch {tmp_path}/made;")
    environ = {"PATH": os.environ["PATH"], "SLURM_SUBMIT_HOST": os.uname().nodename}
    subprocess.run(["bash", "-s"], input=job.prologue.partition("\n")[2], env=environ, capture_output=True, text=True)
    assert not (tmp_path / "made").exists()


def test_a_note_is_read_back_and_other_comments_are_not() -> None:
    note = Note(home_key(HOME), "pyxis", 8000, "node", 18083)
    assert read_note(note.text) == note
    assert read_note(note.text.rpartition(":")[0]) == note._replace(host_port=0)
    assert [read_note(text) for text in ("", "port=8080/job", "pilotlight:k", "my remark: 1:2:3")] == [None] * 4
    assert home_key(HOME) != home_key(Home(Path("/shared/other")))


@pytest.mark.parametrize(
    ("stop", "state", "container", "begun", "words"),
    [
        ("terminate", "PENDING", "none", False, ["--state=PENDING"]),
        ("kill", "PENDING", "none", False, ["--state=PENDING"]),
        ("terminate", "CONFIGURING", "none", False, []),
        ("terminate", "RUNNING", "none", False, []),
        ("terminate", "RUNNING", "none", True, ["--signal=TERM", "--batch"]),
        ("terminate", "RUNNING", "pyxis", True, ["--signal=TERM"]),
        ("kill", "RUNNING", "pyxis", True, ["--signal=KILL", "--full"]),
    ],
)
def test_a_job_is_ended_as_its_state_and_container_need_it(
    stop: str, state: str, container: str, begun: bool, words: list[str]
) -> None:
    found = scancel_arguments(stop, Queued("7", state), Note("k", container), begun=begun)
    assert found == ["scancel", *words, "7"]
