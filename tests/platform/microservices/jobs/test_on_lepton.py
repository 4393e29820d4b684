"""Lepton by its command line: the contract against a stand-in, and what is refused before anything is created."""

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.daemons.installed_programs import install
from tests.platform.microservices.jobs.contract import SECRET, Ground, PlatformContract, clean_environment

from pilotlight.errors import PlatformError, UsageError
from pilotlight.microservices.jobs import launcher
from pilotlight.microservices.jobs.target_service import TargetService
from pilotlight.microservices.registry.records import Job
from pilotlight.microservices.registry.registry_file import registry
from pilotlight.targets.lepton.workspace import Workspace

SHAPE = {"resource_shape": "gpu.8xh100-sxm"}
JOB = Job(
    "4ca2f1e6-0d5f-4d39-9a55-6a4f1e3d2b10", "cosmos-rl", "hf_model://a/b", "nvcr.io/nvidia/tao:6", "sleep 60",
    env={"CLOUD_BASED": "False"}, secrets=("HF_TOKEN",), options={**SHAPE, "image_pull_secret": "ngc"},
)  # fmt: skip


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    state = tmp_path / "workspace"
    state.mkdir()
    (state / "secrets.json").write_text(json.dumps({"HF_TOKEN": SECRET}))
    programs = install(tmp_path / "bin", "lep")
    environ = clean_environment(tmp_path, LEP_STAND_IN=str(state))
    environ["PATH"] = f"{programs}:{Path(sys.executable).parent}:{environ['PATH']}"
    # The workspace keeps the value; here it is only known by name.
    return Ground(TargetService("lepton", environ), environ, registry(environ), SHAPE, written=lambda: _notes(state))


@contextmanager
def broken(ground: Ground, *verbs: str) -> Iterator[None]:
    """Of these the workspace says 502 once it has an endpoint."""
    program = Path(ground.environ["PATH"].partition(":")[0]) / "lep"
    whole = program.with_name("whole-lep")
    program.rename(whole)
    cases = "|".join(f'"{verb}"' for verb in verbs)
    program.write_text(
        f'#!/bin/sh\ncase "$1 $2" in {cases}) ls "$LEP_STAND_IN"/ims-*.json >/dev/null 2>&1 && '
        f'{{ echo 502 Bad Gateway >&2; exit 1; }};; esac\nexec {whole} "$@"\n'
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
        with pytest.raises(PlatformError, match="no secret WANDB_API_KEY"):
            ground.platform.preflight(replace(ground.job(), secrets=("HF_TOKEN", "WANDB_API_KEY")))

    def test_its_address_is_the_endpoints_own(self, ground: Ground) -> None:
        job = ground.job()
        with ground.started(job) as entry:
            (name,) = endpoints(ground)
            assert entry.host_url.startswith("http://127.0.0.1:")
            assert (entry.host_port, entry.platform_job_id) == (None, name)
            assert name.startswith(f"ims-{job.id[:8]}")

    def test_an_endpoint_that_somebody_removed_is_gone(self, ground: Ground) -> None:
        job = ground.job()
        with ground.started(job) as entry:
            (name,) = endpoints(ground)
            Workspace(ground.environ).remove(name)
            seen = ground.platform.status(job.id, entry)
            assert (seen.state, seen.pod_status) == ("gone", "Unknown")
            assert f"lepton has no {name} any more" in seen.reason

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
            pytest.raises(PlatformError, match="its cleanup failed: lep endpoint remove failed") as failed,
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


def endpoints(ground: Ground) -> dict[str, Any]:
    """What the workspace knows of each."""
    files = Path(ground.environ["LEP_STAND_IN"]).glob("ims-*.json")
    return {file.stem: json.loads(file.read_text()) for file in files}


def test_an_endpoint_has_image_port_command_shape_variables_and_names_of_secrets(ground: Ground) -> None:
    with ground.started(JOB):
        (note,) = endpoints(ground).values()
    spec = note["spec"]
    assert spec["container"] == {
        "image": JOB.image, "ports": [{"container_port": 8080}], "command": ["/bin/sh", "-c", "sleep 60"],
    }  # fmt: skip
    assert spec["envs"][-2:] == [
        {"name": "CLOUD_BASED", "value": "False"},
        {"name": "HF_TOKEN", "value_from": {"secret_name_ref": "HF_TOKEN"}},
    ]
    assert spec["resource_requirement"] == {**SHAPE, "min_replicas": 1, "max_replicas": 1}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_gpus": 9}, "resource_shape = gpu.8xh100-sxm has 8 GPUs, but 9 are requested"),
        ({"num_gpus": 2, "options": {"resource_shape": "gpu.a10"}}, "resource_shape = gpu.a10 has 1 GPUs"),
        ({"options": {}}, "lepton needs resource_shape"),
        ({"options": {**SHAPE, "access": "public"}}, "access = public, must be open or left out"),
        ({"options": {**SHAPE, "mounts": "/a:/b"}}, "--mounts is not an option of this platform"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(ground: Ground, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        ground.platform.preflight(replace(JOB, **changes))


def test_a_machine_without_gpus_serves_too(ground: Ground) -> None:
    """As the default asks for one."""
    ground.platform.preflight(replace(JOB, options={"resource_shape": "cpu.small"}))


def test_where_lep_is_not_installed_one_sentence_says_so(tmp_path: Path) -> None:
    with pytest.raises(PlatformError, match="lep is not on the PATH"):
        TargetService("lepton", {"PATH": str(tmp_path), "HOME": str(tmp_path)}).preflight(replace(JOB, secrets=()))
