"""What Brev's instances are told: the script for docker, and which inputs are refused. No daemon."""

import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pilotlight.errors import PlatformError, UsageError
from pilotlight.microservices.platforms.brev import create_arguments, run_script, status_script
from pilotlight.microservices.platforms.containers import Machine
from pilotlight.microservices.registry.records import Job
from pilotlight.targets.brev.instances import read_instances

ID = "4ca2f1e6-0d5f-4d39-9a55-6a4f1e3d2b10"
JOB = Job(ID, "cosmos-rl", "hf_model://a/b", "nvcr.io/nvidia/tao:6", "run", secrets=("HF_TOKEN",), host_port=8081)


@given(st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1), st.text(max_size=3))
def test_whatever_a_secret_holds_docker_gets_it_by_name_and_the_shell_nothing_else(value: str, more: str) -> None:
    script = run_script(replace(JOB, env={"PLAIN": value.replace("\0", "")}), Machine(), {"HF_TOKEN": value})
    export, _, run = script.rpartition("exec docker")
    assert shlex.split(export) == ["export", f"HF_TOKEN={value}"]
    words = shlex.split(run)
    assert "HF_TOKEN" in words
    assert f"PLAIN={value}" in words


def test_a_shell_reads_the_script_as_it_was_meant() -> None:
    """With docker a function of bash that tells what it was given."""
    odd = "a'b\"c $(id) `id` \\ \n; exit"
    script = run_script(replace(JOB, env={"PLAIN": odd}, command=odd), Machine(), {"HF_TOKEN": odd})
    told = script.replace("exec docker", "docker")
    tells = 'docker() { printf "%s\\0" "$HF_TOKEN" "$@"; }\n'
    done = subprocess.run(["bash", "-s"], input=tells + told, capture_output=True, text=True, check=True)
    secret, *words = done.stdout.rstrip("\0").split("\0")
    assert (secret, words[-1]) == (odd, odd)
    assert f"PLAIN={odd}" in words


def test_a_look_asks_for_the_state_and_the_last_lines() -> None:
    first, second = status_script(ID).split(" && ")
    assert shlex.split(first)[:2] == ["docker", "inspect"]
    assert shlex.split(second)[1:3] == ["docker", "logs"]


@pytest.mark.parametrize("option", ["cloud_cred_id", "workspace_group_id"])
def test_inputs_that_brev_create_does_not_take_are_refused_rather_than_lost(option: str) -> None:
    with pytest.raises(UsageError, match=f"{option} = x: brev create cannot be told it"):
        create_arguments(replace(JOB, options={option: "x"}))
    create_arguments(replace(JOB, options={option: "x", "instance_id": "there-already"}))


def test_the_type_of_a_new_instance_is_passed_on() -> None:
    assert create_arguments(replace(JOB, options={"instance_type": "g5.xlarge"})) == [
        "brev", "create", f"ms-{ID}", "--type", "g5.xlarge",
    ]  # fmt: skip


def test_instances_are_read_and_none_is_null() -> None:
    assert read_instances('{"workspaces": null}') == []
    assert read_instances('{"workspaces": [{"name": "a", "id": "b", "status": "RUNNING"}]}')[0].id == "b"
    with pytest.raises(PlatformError, match="printed something else"):
        read_instances("You have 2 instances")
