"""A microservice as a Slurm job: its ports, and its command through two shells. No daemon."""

import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pilotlight.errors import UsageError
from pilotlight.microservices.jobs import launcher
from pilotlight.microservices.platforms import slurm
from pilotlight.microservices.platforms.slurm import comment, port_of, slurm_job
from pilotlight.microservices.registry.records import Job
from pilotlight.targets.slurm.script import PORTS, script

ID = "4ca2f1e6-0d5f-4d39-9a55-6a4f1e3d2b10"
OWN = Job(ID, "pilotlight", "/m", "pilotlight/predictor:0.1.0", "exec python -m pilotlight_predictor", host_port=8083)
TAO = Job(ID, "cosmos-rl", "hf_model://a/b", "nvcr.io/nvidia/tao:6", "run --job '{}'", host_port=8083)


def text(job: Job) -> str:
    return script(slurm_job(job, {**job.options, "partition": "cpu"}, "/logs/a.log", False, ()))


def ran(job: Job, submit_host: str, slurm_id: int = 9907) -> "subprocess.CompletedProcess[str]":
    """By its number it has port 29907, which servers of other tests are not given: where it is taken a script ends."""
    environ = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": str(slurm_id), "SLURM_SUBMIT_HOST": submit_host}
    return subprocess.run(["bash", "-s"], input=text(job), env=environ, capture_output=True, text=True)


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


def test_our_predictor_runs_as_it_is_installed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    job = replace(OWN, command='echo "$PILOTLIGHT_PYTHON" # pilotlight_predictor', host_port=18990)
    monkeypatch.setattr(slurm.sys, "executable", "/opt/it's here/python")
    assert ran(job, "login.example").stdout.splitlines()[-1] == "/opt/it's here/python"


@given(st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=40).map("/models/".__add__))
@settings(max_examples=30, deadline=None)
def test_whatever_a_model_is_called_the_predictor_gets_its_path_as_one_word(path: str) -> None:
    """From the wish to the program's own words, through the job's command, the script and two shells."""
    try:
        job = launcher.build_job(launcher.StartRequest("pilotlight", path, "slurm", host_port=18990), {})
    except UsageError:
        assume(False)
    tells = "printf '%s\\0' \"$@\""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        recorder = Path(folder) / "python"
        recorder.write_text(f"#!/bin/sh\n{tells}\n")
        recorder.chmod(0o755)
        patch.setattr(slurm.sys, "executable", str(recorder))
        done = ran(job, "login.example")
    words = done.stdout.partition("\n")[2].split("\0")
    assert words[words.index("--model-path") + 1] == job.model_path
    assert words[:2] == ["-m", "pilotlight_predictor"]
