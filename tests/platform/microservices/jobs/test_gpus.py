"""Values of a job for programs and shells, and how a machine hands out its GPUs."""

import os
from pathlib import Path

from msgspec.structs import replace

from pilotlight.microservices.jobs.target_service import secret_values
from pilotlight.microservices.registry.records import Job
from pilotlight.targets.docker.run_arguments import gpus_here

JOB = Job("4ca2f1e6-0d5f-4d39-9a55-6a4f1e3d2b10", "a", "/m", "image", "run", secrets=("HF_TOKEN", "MY_OWN"))
ENVIRON = {**os.environ, "HF_TOKEN": "hf_planted0123", "MY_OWN": "another-planted"}


def test_secrets_that_are_not_set_are_left_out() -> None:
    assert secret_values(JOB, {"HF_TOKEN": "x", "MY_OWN": ""}) == {"HF_TOKEN": "x"}
    assert secret_values(replace(JOB, secrets=()), ENVIRON) == {}


def test_how_a_machine_hands_out_gpus(tmp_path: Path) -> None:
    root = tmp_path
    assert gpus_here(root) == "none"
    (root / "dev").mkdir()
    (root / "dev/nvidiactl").touch()
    assert gpus_here(root) == "requests"
    (root / "etc").mkdir()
    (root / "etc/nv_tegra_release").touch()
    assert gpus_here(root) == "tegra"
