"""A job as the words of sbatch and the script on its standard input. No daemon; a real shell reads the script."""

import os
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pilotlight.errors import UsageError
from pilotlight.microservices.jobs import launcher
from pilotlight.microservices.platforms.slurm_script import (
    PORTS,
    SlurmTarget,
    comment,
    enroot_uri,
    port_of,
    sbatch_arguments,
    script,
)
from pilotlight.microservices.registry.records import Job

ID = "4ca2f1e6-0d5f-4d39-9a55-6a4f1e3d2b10"
OWN = Job(ID, "pilotlight", "/m", "pilotlight/predictor:0.1.0", "exec python -m pilotlight_predictor", host_port=8083)
TAO = Job(ID, "cosmos-rl", "hf_model://a/b", "nvcr.io/nvidia/tao:6", "run --job '{}'", host_port=8083)
PLACE = SlurmTarget("cpu", "team", "/logs/a.log")
TEXT = st.text(st.characters(exclude_characters="\0", codec="utf-8"))


def test_the_call_names_job_partition_account_log_and_what_is_passed_on() -> None:
    words = sbatch_arguments(OWN, PLACE, ("PATH", "HF_TOKEN"))
    assert words[:2] == ["sbatch", "--parsable"]
    assert {
        f"--job-name={ID}", "--partition=cpu", "--account=team", "--output=/logs/a.log", "--export=PATH,HF_TOKEN",
    } <= set(words)  # fmt: skip


def test_gpus_are_asked_for_only_where_there_are_some() -> None:
    two = replace(OWN, num_gpus=2)
    assert "--gres=gpu:2" in sbatch_arguments(two, PLACE._replace(gpus=True), ())
    assert not [word for word in sbatch_arguments(two, PLACE, ()) if "gpu" in word]


def test_a_time_limit_is_passed_on_where_one_is_set() -> None:
    assert "--time=1-00:00:00" in sbatch_arguments(replace(OWN, options={"time": "1-00:00:00"}), PLACE, ())
    assert not [word for word in sbatch_arguments(OWN, PLACE, ()) if word.startswith("--time")]


@given(value=TEXT, command=TEXT)
@settings(max_examples=50, deadline=None)
def test_whatever_variables_and_commands_hold_reaches_the_program_and_no_shell_on_the_way(
    value: str, command: str
) -> None:
    """`sh` is a function here, which tells its words and the variable instead of running them."""
    job = replace(OWN, env={"PLAIN": value}, command=command + " pilotlight_predictor")
    told = script(job, PLACE).replace("exec /bin/sh", "tells")
    tells = 'tells() { printf "%s\\0" "$PLAIN" "$@"; }\n'
    environ = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "9907", "SLURM_SUBMIT_HOST": "elsewhere"}
    done = subprocess.run(["bash", "-s"], input=(tells + told).encode(), env=environ, capture_output=True, check=True)
    said = done.stdout.partition(b"\n")[2].decode()
    assert said.rstrip("\0").split("\0") == [value.rstrip("\0"), "-c", job.command]


def ran(job: Job, submit_host: str, slurm_id: int = 9907, python: str = "python") -> "subprocess.CompletedProcess[str]":
    """By its number it has port 29907, which servers of other tests are not given: where it is taken a script ends."""
    environ = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": str(slurm_id), "SLURM_SUBMIT_HOST": submit_host}
    text = script(job, PLACE._replace(python=python))
    return subprocess.run(["bash", "-s"], input=text, env=environ, capture_output=True, text=True)


def test_on_the_submitting_machine_it_listens_on_host_port_and_elsewhere_by_its_number() -> None:
    job = replace(OWN, command='echo "listens on $INFERENCE_PORT" # pilotlight_predictor', host_port=18990)
    assert "listens on 18990" in ran(job, os.uname().nodename).stdout
    assert "listens on 29907" in ran(job, "login.example").stdout
    assert port_of(comment(job), "9907", here=True) == 18990
    assert port_of(comment(job), "9907", here=False) == 29907


@given(st.integers(1, 10**7), st.integers(1, len(PORTS) - 1))
def test_jobs_that_run_at_once_on_one_node_have_different_ports(number: int, later: int) -> None:
    said = comment(OWN)
    first, second = (port_of(said, str(each), here=False) for each in (number, number + later))
    assert first != second
    assert first in PORTS


def test_what_the_api_starts_listens_on_its_nodes_loopback_alone() -> None:
    job = replace(OWN, command='echo "$INFERENCE_HOST" # pilotlight_predictor', host_port=18990)
    assert ran(replace(job, closed=True), "login.example").stdout.splitlines()[-1] == "127.0.0.1"
    assert ran(job, "login.example").stdout.splitlines()[-1] == ""


def test_an_image_that_cannot_be_told_its_port_keeps_it() -> None:
    assert port_of(comment(TAO), "7", here=False) == 8080
    assert port_of(comment(TAO), "7", here=True) == 8080
    assert port_of("somebody's remark", "7", here=True) == 0


def test_a_port_that_is_taken_on_the_node_ends_the_job_with_a_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = ran(replace(OWN, host_port=taken.getsockname()[1]), os.uname().nodename)
    assert done.returncode == 98
    assert "is taken: another job or program listens there" in done.stderr


def test_our_predictor_runs_as_it_is_installed_here(tmp_path: Path) -> None:
    job = replace(OWN, command='echo "$PILOTLIGHT_PYTHON" # pilotlight_predictor', host_port=18990)
    assert ran(job, "login.example", python="/opt/it's here/python").stdout.splitlines()[-1] == "/opt/it's here/python"


@given(st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=40).map("/models/".__add__))
@settings(max_examples=30, deadline=None)
def test_whatever_a_model_is_called_the_predictor_gets_its_path_as_one_word(path: str) -> None:
    """From the wish to the program's own words, through the job's command, the script and two shells."""
    try:
        job = launcher.build_job(launcher.StartRequest("pilotlight", path, "slurm", host_port=18990), {})
    except UsageError:
        assume(False)
    tells = "printf '%s\\0' \"$@\""
    with tempfile.TemporaryDirectory() as folder:
        recorder = Path(folder) / "python"
        recorder.write_text(f"#!/bin/sh\n{tells}\n")
        recorder.chmod(0o755)
        done = ran(job, "login.example", python=str(recorder))
    words = done.stdout.partition("\n")[2].split("\0")
    assert words[words.index("--model-path") + 1] == job.model_path
    assert words[:2] == ["-m", "pilotlight_predictor"]


@pytest.mark.parametrize(
    ("container", "starts"),
    [
        ("apptainer", "exec apptainer exec --nv --bind /models:/models docker://nvcr.io/nvidia/tao:6 /bin/sh -c "),
        ("singularity", "exec singularity exec --nv --bind /models:/models docker://nvcr.io/nvidia/tao:6 /bin/sh -c "),
        (
            "pyxis",
            "exec srun --export=ALL --ntasks=1 '--container-image=nvcr.io#nvidia/tao:6' "
            "--container-mounts=/models:/models --container-env=A,HF_TOKEN /bin/sh -c ",
        ),
        ("enroot", f"enroot start --rw --env A --env HF_TOKEN --mount /models:/models {ID} /bin/sh -c "),
    ],
)
def test_containers_are_started_as_the_cluster_has_them(container: str, starts: str) -> None:
    options = {"container": container, "mounts": "/models:/models"}
    job = replace(TAO, options=options, env={"A": "b"}, secrets=("HF_TOKEN",))
    last = script(job, PLACE._replace(gpus=True)).splitlines()[-1]
    assert last.startswith(starts)
    assert subprocess.run(["bash", "-n"], input=script(job, PLACE), text=True).returncode == 0


@pytest.mark.parametrize("container", ["", "none", "podman"])
def test_an_image_that_is_not_ours_needs_a_container_that_is_known(container: str) -> None:
    with pytest.raises(UsageError, match="needs one of pyxis, enroot, apptainer, singularity"):
        script(replace(TAO, options={"container": container}), PLACE)


@pytest.mark.parametrize(
    ("image", "uri"),
    [
        ("nvcr.io/nvidia/tao:6", "nvcr.io#nvidia/tao:6"),
        ("localhost/a:1", "localhost#a:1"),
        ("host:5000/a/b", "host:5000#a/b"),
        ("pilotlight/predictor:0.1.0", "pilotlight/predictor:0.1.0"),
        ("ubuntu", "ubuntu"),
    ],
)
def test_enroot_gets_the_registry_apart(image: str, uri: str) -> None:
    assert enroot_uri(image) == uri
