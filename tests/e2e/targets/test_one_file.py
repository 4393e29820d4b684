"""One file deploys on local, docker and slurm by the commands of docs/how-to/targets.md (kubernetes: tests/cluster)."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.daemons.availability import base_environment
from tests.daemons.docker_daemon import IMAGE, bridge_address
from tests.e2e.targets.one_file import blocks, command, deploy_ask_watch_scale_and_delete, model_store
from tests.embedded import processes_of
from tests.object_stores import moto
from tests.ports import free_port

from pilotlight.plan.types import Capabilities
from pilotlight.targets.local.home_directory import Home


def test_the_commands_of_the_page_differ_by_the_target_alone() -> None:
    file, commands = blocks()
    assert file.count("kind: InferenceService") == 1
    targets = [words.pop(5) for words in commands]
    assert targets == ["local", "kubernetes", "docker", "slurm"]
    assert {tuple(words[:5]) for words in commands} == {("deploy", "-f", "iris.yaml", "--env", "--target")}


@pytest.fixture
def environ(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Environment of a shell on a machine with the target's daemons and a model store that its replicas reach."""
    target: str = request.param
    daemons = {"docker": "docker_engine", "slurm": "slurm_cluster"}
    base: Mapping[str, str] = request.getfixturevalue(daemons[target]) if target in daemons else base_environment()
    host = "127.0.0.1"
    if target == "docker":
        subprocess.run(["docker", "tag", IMAGE, Capabilities().image], env=dict(base), check=True)
        host = bridge_address(base)
    names = ("PILOTLIGHT_GATEWAY_PORT", "PILOTLIGHT_API_PORT")
    with moto(host) as endpoint:
        ports = {name: str(free_port()) for name in names}
        yield {
            **base, **ports, **model_store(endpoint).env, "PILOTLIGHT_HOME": str(tmp_path / "home"),
            "PILOTLIGHT_SERVICE_PORTS": "0", "PILOTLIGHT_PILOT_LIGHT": "off",
        }  # fmt: skip


@pytest.mark.platform
@pytest.mark.parametrize(
    ("environ", "target"), [(name, name) for name in ("local", "docker", "slurm")], indirect=["environ"]
)
def test_one_file_is_deployed_asked_scaled_and_deleted(environ: dict[str, str], target: str, tmp_path: Path) -> None:
    def platformctl(*words: str) -> subprocess.CompletedProcess[str]:
        program = str(Path(sys.executable).parent / "platformctl")
        return subprocess.run([program, *words], env=environ, capture_output=True, text=True, timeout=300)

    deploy = command(target, tmp_path)
    try:
        deploy_ask_watch_scale_and_delete(platformctl, deploy, target)
        assert platformctl(*deploy, "--no-wait").returncode == 0
    finally:
        ended = platformctl("down")
    assert (ended.returncode, ended.stdout) == (0, "default/iris\n")
    assert not processes_of(Home(tmp_path / "home"))
