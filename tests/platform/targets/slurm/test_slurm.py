"""The contract of targets, kept by jobs of a real Slurm cluster."""

import subprocess
from collections.abc import Iterator, Mapping

import pytest
from tests.embedded import IRIS, Platform
from tests.platform.targets.target_contract import TargetContract, TargetGround

from pilotlight.targets.slurm.job import home_key

pytestmark = pytest.mark.platform


@pytest.fixture(scope="module")
def ground(slurm_cluster: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[TargetGround]:
    folder = tmp_path_factory.mktemp("slurm") / "home"
    with Platform(folder, slurm_cluster, name="slurm", options={"partition": "cpu"}) as platform:
        yield TargetGround(platform, IRIS.as_uri(), lambda: jobs(platform), wakes=False)


def jobs(platform: Platform) -> list[str]:
    """Names of those in the queue."""
    words = ["squeue", "--noheader", "--format=%j|%k"]
    printed = subprocess.run(words, env=platform.env, capture_output=True, text=True, timeout=60, check=True).stdout
    rows = (line.split("|") for line in printed.splitlines())
    return sorted(name for name, comment in rows if home_key(platform.home) in comment)


class TestSlurm(TargetContract):
    pass
