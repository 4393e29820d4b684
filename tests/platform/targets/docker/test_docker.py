"""The contract of targets, kept by containers of a real Docker daemon, and what is of containers alone."""

import subprocess
from collections.abc import Iterator, Mapping

import pytest
from tests.daemons.docker_daemon import IMAGE, options
from tests.embedded import IRIS, Platform
from tests.platform.targets.target_contract import TargetContract, TargetGround

from pilotlight.plan.types import Capabilities

pytestmark = pytest.mark.platform


@pytest.fixture(scope="module")
def ground(docker_engine: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[TargetGround]:
    docker(docker_engine, "tag", IMAGE, Capabilities().image)
    folder = tmp_path_factory.mktemp("docker") / "home"
    with Platform(folder, docker_engine, name="docker", options=options()) as platform:
        yield TargetGround(platform, IRIS.as_uri(), lambda: containers(platform))


def docker(environ: Mapping[str, str], *words: str) -> str:
    done = subprocess.run(["docker", *words], env=dict(environ), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def containers(platform: Platform) -> list[str]:
    """Names of those that the daemon knows, ended ones too."""
    label = f"--filter=label=dev.pilotlight.home={platform.home.root}"
    return sorted(docker(platform.env, "ps", "--all", "--format={{.Names}}", label).split())


class TestDocker(TargetContract):
    pass
