"""Lepton by its command line: the contract against a stand-in, and what is refused before anything is created."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.daemons.installed_programs import install
from tests.platform.microservices.platforms.contract import SECRET, Ground, PlatformContract, clean_environment

from pilotlight.errors import PlatformError, UsageError
from pilotlight.microservices.jobs import launcher
from pilotlight.microservices.platforms import platform
from pilotlight.microservices.platforms.lepton import Lepton, create_arguments, endpoint_name, seen
from pilotlight.microservices.registry.records import Job
from pilotlight.microservices.registry.registry_file import registry
from pilotlight.targets.lepton.workspace import read_document

SHAPE = {"resource_shape": "gpu.8xh100-sxm"}
JOB = Job(
    "4ca2f1e6-0d5f-4d39-9a55-6a4f1e3d2b10", "cosmos-rl", "hf_model://a/b", "nvcr.io/nvidia/tao:6", "run", options=SHAPE
)


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    state = tmp_path / "workspace"
    state.mkdir()
    (state / "secrets.json").write_text(json.dumps({"HF_TOKEN": SECRET}))
    programs = install(tmp_path / "bin", "lep")
    environ = clean_environment(tmp_path, LEP_STAND_IN=str(state))
    environ["PATH"] = f"{programs}:{Path(sys.executable).parent}:{environ['PATH']}"
    # The workspace keeps the value; here it is only known by name.
    return Ground(platform("lepton", environ), environ, registry(environ), SHAPE, written=lambda: _notes(state))


@contextmanager
def broken(ground: Ground, *verbs: str) -> Iterator[None]:
    """Of these the workspace says 502."""
    program = Path(ground.environ["PATH"].partition(":")[0]) / "lep"
    whole = program.with_name("whole-lep")
    program.rename(whole)
    cases = "|".join(f'"{verb}"' for verb in verbs)
    program.write_text(
        f'#!/bin/sh\ncase "$1 $2" in {cases}) echo 502 Bad Gateway >&2; exit 1;; esac\nexec {whole} "$@"\n'
    )
    program.chmod(0o755)
    try:
        yield
    finally:
        whole.rename(program)


def _notes(state: Path) -> str:
    return "".join(path.read_text() for path in state.glob("*.json") if path.name != "secrets.json")


class TestLepton(PlatformContract):
    def test_a_secret_that_the_workspace_lacks_is_named_before_anything_is_created(self, ground: Ground) -> None:
        with pytest.raises(PlatformError, match="no secret called WANDB_API_KEY"):
            ground.platform.preflight(replace(ground.job(), secrets=("HF_TOKEN", "WANDB_API_KEY")))

    def test_its_address_is_the_endpoints_own(self, ground: Ground) -> None:
        job = ground.job()
        with ground.started(job) as entry:
            assert entry.host_url.startswith("http://127.0.0.1:")
            assert (entry.host_port, entry.platform_job_id) == (None, endpoint_name(job.id))

    def test_an_endpoint_that_cannot_be_asked_after_it_was_created_is_removed_again(self, ground: Ground) -> None:
        with (
            broken(ground, "endpoint get"),
            pytest.raises(PlatformError, match="lep endpoint get failed: 502 Bad Gateway"),
        ):
            launcher.start(ground.job(), ground.platform, ground.registry)
        assert (ground.written(), ground.registry.read().entries) == ("", {})

    def test_an_endpoint_that_cannot_be_removed_either_is_kept_for_a_later_stop(self, ground: Ground) -> None:
        job = ground.job()
        with (
            broken(ground, "endpoint get", "endpoint remove"),
            pytest.raises(PlatformError, match="could not be ended: lep endpoint remove failed") as failed,
        ):
            launcher.start(job, ground.platform, ground.registry)
        assert failed.value.hint == f"platformctl microservice stop {job.id}"
        assert ground.written()
        ground.platform.stop(job.id, ground.registry.read().entries[job.id])
        assert ground.written() == ""

    def test_nothing_of_it_is_left_after_a_stop(self, ground: Ground) -> None:
        with ground.started(ground.job()):
            pass
        assert ground.written() == ""


def test_the_call_says_image_port_command_shape_variables_and_names_of_secrets() -> None:
    job = replace(JOB, env={"CLOUD_BASED": "False"}, secrets=("HF_TOKEN",))
    words = create_arguments(replace(job, options={**SHAPE, "dedicated_node_group": "ng", "image_pull_secret": "ngc"}))
    pairs = dict(zip(words[3::2], words[4::2], strict=True))
    assert words[:3] == ["lep", "endpoint", "create"]
    assert pairs == {
        "--name": "ms-4ca2f1e60d5f4d399a556a4f1e3d2b10", "--container-image": JOB.image, "--container-port": "8080",
        "--container-command": "run", "--resource-shape": "gpu.8xh100-sxm", "--replicas-static": "1",
        "--env": "CLOUD_BASED=False", "--secret": "HF_TOKEN", "--node-group": "ng", "--image-pull-secrets": "ngc",
    }  # fmt: skip


def test_an_endpoint_is_open_only_where_that_was_asked_for() -> None:
    open_to_all = "--allow-unauthenticated-access"
    assert open_to_all not in create_arguments(JOB)
    assert create_arguments(replace(JOB, options={**SHAPE, "access": "open"}))[-1] == open_to_all
    with pytest.raises(UsageError, match="access = public, must be open or left out"):
        create_arguments(replace(JOB, options={**SHAPE, "access": "public"}))


def test_more_gpus_than_the_shape_has_are_refused() -> None:
    with pytest.raises(UsageError, match=r"num_gpus = 9, but the shape gpu.8xh100-sxm has 8"):
        create_arguments(replace(JOB, num_gpus=9))
    with pytest.raises(UsageError, match=r"num_gpus = 2, but the shape gpu.a10 has 1"):
        create_arguments(replace(JOB, num_gpus=2, options={"resource_shape": "gpu.a10"}))


def test_a_missing_shape_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="resource_shape is missing"):
        create_arguments(replace(JOB, options={}))


@pytest.mark.parametrize(
    ("word", "state", "phase"),
    [
        ("Ready", "running", "Running"),
        ("Not Ready", "pending", "Pending"),
        ("Scaling", "pending", "Pending"),
        ("Stopped", "stopped", "Succeeded"),
        ("Error", "failed", "Failed"),
    ],
)
def test_states_of_lepton_are_states_of_ours(word: str, state: str, phase: str) -> None:
    found = seen({"status": {"state": word}}, "ms-1")
    assert (found.state, found.pod_status) == (state, phase)
    assert (word in found.reason) == (state != "running")


def test_a_document_is_read_from_among_other_lines() -> None:
    assert read_document('Using workspace x\n{"status": {"state": "Ready"}}\ndone\n') == {"status": {"state": "Ready"}}
    with pytest.raises(PlatformError, match="printed no JSON"):
        read_document("Traceback …")


def test_where_lep_is_not_installed_one_sentence_says_so(tmp_path: Path) -> None:
    with pytest.raises(PlatformError, match="lep is not on the PATH"):
        Lepton({"PATH": str(tmp_path)}).preflight(JOB)
