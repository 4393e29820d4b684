"""Microservices of the API as containers of a real Docker daemon."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import object_stores
from tests.daemons.docker_daemon import IMAGE, IRIS, options
from tests.embedded import Platform
from tests.platform.microservices.api.conftest import FLOWER, ORG, Api
from tests.platform.microservices.api.test_stored_models import SECRET, registered
from tests.platform.microservices.jobs.conftest import SAYS

pytestmark = pytest.mark.platform
COSMOS = "dev.local/cosmos:1"
# Stands in for NVIDIA's program, and takes what that takes.
PROGRAM = """#!/usr/bin/env python
import json, os, sys
model = json.loads(sys.argv[sys.argv.index("--job") + 1])["specs"]["model_path"]
words = ["--microservice", "--model-name", "model", "--model-path", model]
os.execvp("python", ["python", "-m", "pilotlight_predictor", *words])
"""


@pytest.fixture
def on_docker(docker_engine: dict[str, str], tmp_path: Path) -> Iterator[Api]:
    own = {
        "PILOTLIGHT_MICROSERVICE_REGISTRY": str(tmp_path / "registry.json"), "PILOTLIGHT_API_PLATFORM": "docker",
        "IMAGE_PILOTLIGHT": IMAGE, "PILOTLIGHT_PROMETHEUS": "", "HF_TOKEN": "hf_which-the-next-container-needs-too",
        "IMAGE_COSMOS_RL": COSMOS, "PILOTLIGHT_MEDIA_NETWORKS": "127.0.0.0/8", "PILOTLIGHT_MEDIA_ALLOW_HTTP": "true",
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


def test_a_checkpoint_in_a_cloud_workspace_is_fetched_for_an_image_that_reads_no_stores(
    on_docker: Api, tmp_path: Path
) -> None:
    api = on_docker
    make_cosmos(api, tmp_path)
    with object_stores.moto() as endpoint:
        bucket = object_stores.s3_bucket(endpoint, "models")
        bucket.put("checkpoint/1/model.py", SAYS.encode())
        experiment = registered(api, endpoint, "cosmos-rl", "checkpoint", api.token)
        job = api.start(experiment, experiment)
        at = api.microservice(experiment, job)
        api.wait_loaded(at)
    shown = docker(api, "inspect", "--format={{.Config.User}} {{json .Mounts}} {{json .Args}}", job)
    assert shown.startswith("65532 ")
    assert f'"Destination":"/models/{job}"' in shown
    assert SECRET not in shown
    assert api.ok("POST", f"{at}/stop")["status"] == "stopped"


def make_cosmos(api: Api, folder: Path) -> None:
    program = folder / "cosmos-rl-inference-microservice"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    docker(api, "create", "--name=cosmos", IMAGE)
    docker(api, "cp", str(program), f"cosmos:/usr/local/bin/{program.name}")
    docker(api, "commit", '--change=ENTRYPOINT ["/usr/bin/env"]', "cosmos", COSMOS)
    docker(api, "rm", "cosmos")
