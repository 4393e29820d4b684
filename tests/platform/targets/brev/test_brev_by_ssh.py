"""Brev with a stand-in of its command line alone: real ssh leads to this machine, and a real Docker runs containers."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.daemons.availability import available
from tests.daemons.docker_daemon import IMAGE, IRIS, options
from tests.daemons.installed_programs import install
from tests.daemons.ssh_server import ssh_server
from tests.platform.microservices.jobs.contract import Ground, clean_environment, free_ports
from tests.platform.targets.remote_platform import RemotePlatform
from tests.platform.targets.target_contract import KEY

from pilotlight.errors import NotFound
from pilotlight.microservices.jobs.target_service import TargetService
from pilotlight.microservices.registry.registry_file import registry

pytestmark = pytest.mark.platform
INSTANCE = {"name": "gpu-one", "id": "abc123def", "status": "RUNNING"}
DOCUMENT = f"""
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {{name: iris}}
spec:
  predictor:
    minReplicas: 1
    containers:
    - name: kserve-container
      image: {IMAGE}
      env: [{{name: INFERENCE_MODEL_NAME, value: iris}}, {{name: INFERENCE_MODEL_PATH, value: %s}}]
      resources: {{limits: {{memory: 1Gi, cpu: "1"}}}}
"""


@pytest.fixture
def platform(docker_engine: dict[str, str], tmp_path: Path) -> Iterator[RemotePlatform]:
    remote = {name: docker_engine[name] for name in ("PATH", "DOCKER_HOST", "DOCKER_CONFIG")}
    (tmp_path / "brev.json").write_text(json.dumps([INSTANCE]))
    with available(ssh_server(docker_engine, "gpu-one", remote)) as environ:
        path = f"{install(tmp_path / 'bin', 'brev')}:{environ['PATH']}"
        variables = {"PILOTLIGHT_HOME": str(tmp_path / "home"), "BREV_STAND_IN": str(tmp_path / "brev.json")}
        yield RemotePlatform("brev", {**environ, **variables, "PATH": path}, {"instance_id": "gpu-one", **options()})


def test_a_microservice_is_started_asked_and_stopped(platform: RemotePlatform, tmp_path: Path) -> None:
    environ = clean_environment(tmp_path, platform.env)
    chosen = {"instance_id": "gpu-one", **options()}
    place = Ground(TargetService("brev", environ), environ, registry(environ), chosen, IRIS, IMAGE, free_ports())
    job = replace(place.job(), closed=True)
    with place.started(job) as entry:
        place.until_ready(job, entry)
        seen = place.platform.status(job.id, entry)
        assert (seen.state, seen.pod_name) == ("running", "gpu-one")
        assert any("ready" in line for line in seen.tail)
    assert place.platform.status(job.id, entry).state == "gone"


def test_a_container_is_run_asked_replaced_and_removed(platform: RemotePlatform) -> None:
    platform.deploy(DOCUMENT % IRIS)
    try:
        first = platform.wait_phase("Ready", seconds=120)
        assert platform.ask().json()["outputs"][0]["shape"] == [1, 3]
        lines = platform.target.logs(KEY, follow=False, previous=False, replica="", tail=100)
        assert any("ready" in line.lower() for line in lines)
        platform.deploy(DOCUMENT % "/models/missing.onnx")
        platform.wait(lambda: platform.status().phase == "Failed", "a model that is not there")
        assert "missing.onnx" in platform.status().message or "exit code" in platform.status().message
        platform.deploy(DOCUMENT % IRIS)
        assert platform.wait_phase("Ready", seconds=120).url == first.url
    finally:
        platform.target.delete(KEY)
    with pytest.raises(NotFound):
        platform.status()
