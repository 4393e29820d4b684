"""A job as the arguments of sbatch and the script on its standard input. No daemon; a real shell reads the script."""

import socket
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilotlight.errors import UsageError
from pilotlight.targets.slurm.script import (
    PORTS,
    PORTS_EACH,
    SlurmJob,
    container_kind,
    enroot_uri,
    exports,
    first_port,
    port_check,
    sbatch_arguments,
    script,
    signal_flags,
)

PLACE = {"partition": "cpu", "account": "team"}
OWN = SlurmJob("iris-1", "/logs/a.log", ("python", "-m", "pilotlight_predictor"), PLACE, exported=("PATH", "HF_TOKEN"))
FOREIGN = OWN._replace(image="nvcr.io/nvidia/tao:6", command=("run", "--job", "{}"))
TEXT = st.text(st.characters(exclude_characters="\0", codec="utf-8"))


def test_the_call_names_job_partition_account_log_and_what_is_passed_on() -> None:
    words = sbatch_arguments(OWN)
    assert words[:2] == ["sbatch", "--parsable"]
    assert {
        "--job-name=iris-1", "--partition=cpu", "--account=team", "--output=/logs/a.log", "--export=PATH,HF_TOKEN",
    } <= set(words)  # fmt: skip
    assert not [word for word in words if "gres" in word or "time" in word]


def test_gpus_and_a_time_limit_are_requested_where_they_are_set() -> None:
    words = sbatch_arguments(OWN._replace(gpus=2, options={"partition": "gpu", "time": "1-00:00:00"}))
    assert {"--gres=gpu:2", "--time=1-00:00:00"} <= set(words)
    assert not [word for word in words if word.startswith("--account")]


@given(value=TEXT, word=TEXT)
@settings(max_examples=50, deadline=None)
def test_whatever_variables_and_arguments_hold_reaches_the_program_as_it_is(value: str, word: str) -> None:
    """The program is a function of the shell, which prints its arguments and the variable."""
    job = OWN._replace(variables={"PLAIN": value}, command=("program", word))
    text = 'program() { printf "%s\\0" "$PLAIN" "$@"; }\n' + script(job).replace("exec program", "program")
    done = subprocess.run(["bash", "-s"], input=text.encode(), capture_output=True, check=True)
    assert done.stdout.decode().split("\0") == [value, word, ""]


@given(st.integers(1, 10**7), st.integers(1, len(PORTS) // PORTS_EACH - 1))
def test_jobs_that_run_at_once_on_one_node_have_different_ports(number: int, later: int) -> None:
    first, second = (first_port(str(each)) for each in (number, number + later))
    assert abs(first - second) >= PORTS_EACH
    assert first in PORTS
    assert first + PORTS_EACH - 1 in PORTS


def test_a_port_that_is_taken_on_the_node_ends_the_job_with_a_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        text = port_check(str(taken.getsockname()[1]))
        done = subprocess.run(["bash", "-s"], input=text, capture_output=True, text=True)
    assert done.returncode == 98
    assert "is in use by another job or program" in done.stderr


@pytest.mark.parametrize(
    ("name", "starts"),
    [
        ("apptainer", "exec apptainer exec --nv --bind /models:/models docker://nvcr.io/nvidia/tao:6 run --job "),
        ("singularity", "exec singularity exec --nv --bind /models:/models docker://nvcr.io/nvidia/tao:6 run --job "),
        (
            "pyxis",
            "exec srun --export=ALL --ntasks=1 '--container-image=nvcr.io#nvidia/tao:6' "
            "--container-mounts=/models:/models --container-env=A,HF_TOKEN run --job ",
        ),
        ("enroot", "enroot start --rw --env A --env HF_TOKEN --mount /models:/models iris-1 run --job "),
    ],
)
def test_containers_are_started_as_the_cluster_has_them(name: str, starts: str) -> None:
    options = {**PLACE, "mounts": "/models:/models"}
    job = FOREIGN._replace(options=options, container=name, variables={"A": "b"}, gpus=1)
    assert script(job).splitlines()[-1].startswith(starts)
    assert subprocess.run(["bash", "-n"], input=script(job), text=True).returncode == 0


@pytest.mark.parametrize(
    ("name", "starts"),
    [
        ("apptainer", "exec apptainer run docker://nvcr.io/nvidia/tao:6 --port 1"),
        ("pyxis", "exec srun --export=ALL --ntasks=1 '--container-image=nvcr.io#nvidia/tao:6' "
                  "--container-env=HF_TOKEN --container-entrypoint --port 1"),
    ],
)  # fmt: skip
def test_without_a_command_the_entry_point_of_the_image_runs(name: str, starts: str) -> None:
    job = FOREIGN._replace(container=name, command=(), args=("--port", "1"))
    assert script(job).splitlines()[-1] == starts


def test_a_signal_reaches_the_server_in_every_container() -> None:
    flags = {name: signal_flags(name) for name in ("none", "apptainer", "enroot", "pyxis")}
    assert flags == {"none": ("--batch",), "apptainer": ("--batch",), "enroot": ("--full",), "pyxis": ()}


@pytest.mark.parametrize("name", ["", "none", "podman"])
def test_an_image_that_is_not_ours_needs_a_container_that_is_known(name: str) -> None:
    with pytest.raises(UsageError, match="needs one of pyxis, enroot, apptainer, singularity"):
        container_kind(name, "nvcr.io/nvidia/tao:6", own=False)


def test_our_predictor_needs_no_container_and_takes_a_known_one() -> None:
    kinds = [container_kind(name, "pilotlight/predictor:1", own=True) for name in ("", "none", "pyxis")]
    assert kinds == ["none", "none", "pyxis"]
    with pytest.raises(UsageError, match="container = podman"):
        container_kind("podman", "pilotlight/predictor:1", own=True)


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


def test_exports_are_lines_of_a_shell() -> None:
    assert exports({"A": "b c", "D": "it's"}) == "export A='b c'\nexport D='it'\"'\"'s'\n"


def test_variables_of_the_prologue_do_not_reach_the_server() -> None:
    job = OWN._replace(command=("env",), hidden=("FETCH_KEY",), prologue="echo got $FETCH_KEY\n")
    assert "--export=PATH,HF_TOKEN,FETCH_KEY" in sbatch_arguments(job)
    environ = {"PATH": "/usr/bin:/bin", "FETCH_KEY": "value", "OTHER": "stays"}
    done = subprocess.run(["bash", "-s"], input=script(job), env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("got value\n")
    assert "OTHER=stays" in done.stdout
    assert "FETCH_KEY" not in done.stdout
