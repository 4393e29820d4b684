"""Microservices of the API as containers of a real Docker daemon."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.daemons.docker_daemon import IMAGE, IRIS, options
from tests.embedded import Platform
from tests.platform.microservices.api.conftest import FLOWER, ORG, Api

pytestmark = pytest.mark.platform


@pytest.fixture
def on_docker(docker_engine: dict[str, str], tmp_path: Path) -> Iterator[Api]:
    own = {
        "PILOTLIGHT_MICROSERVICE_REGISTRY": str(tmp_path / "registry.json"), "PILOTLIGHT_API_PLATFORM": "docker",
        "IMAGE_PILOTLIGHT": IMAGE, "PILOTLIGHT_PROMETHEUS": "", "HF_TOKEN": "hf_which-the-next-container-needs-too",
        **{f"PILOTLIGHT_API_OPTION_{name.upper()}": value for name, value in options().items()},
    }  # fmt: skip
    with Platform(tmp_path / "home", {**docker_engine, **own}, name="docker") as platform:
        made = Api(platform)
        made.token = str(made.login(made.ctl("api", "key", "create", ORG)).json()["token"])
        yield made


def docker(api: Api, *words: str) -> str:
    done = subprocess.run(["docker", *words], env=api.platform.env, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_a_microservice_is_a_service_of_the_target_and_comes_back_after_crashes(on_docker: Api) -> None:
    api = on_docker
    experiment, parent = api.train(Path(IRIS))
    job = api.start(experiment, parent)
    at = api.microservice(experiment, job)
    api.wait_loaded(at)
    assert docker(api, "ps", "--format={{.Names}}") == job
    assert docker(api, "port", job).startswith("8080/tcp -> 127.0.0.1:80")
    assert len(docker(api, "port", job).splitlines()) == 1
    status = api.ok("GET", f"{at}/status")
    assert (status["status"], status["pod_name"], status["pod_status"]) == ("healthy", job, "Running")
    (service,) = api.platform.target.list(ORG)
    assert (service.name, service.phase) == (f"ims-{job}", "Ready")
    assert api.ok("POST", f"{at}/inference", FLOWER)["results"]["outputs"]
    assert any("ready" in line for line in api.ok("GET", f"{at}/logs")["lines"])

    api.platform.kill_control()
    api.wait_back()
    assert api.ok("POST", f"{at}/inference", FLOWER)["results"]["outputs"]
    docker(api, "kill", job)
    api.wait(lambda: bool(api.ok("GET", f"{at}/status")["model_loaded"]), "it to be started again")
    assert api.ok("POST", f"{at}/inference", FLOWER)["results"]["outputs"]

    assert api.ok("POST", f"{at}/stop")["status"] == "stopped"
    assert docker(api, "ps", "--all", "--quiet") == ""
    assert not api.platform.target.list(ORG)
