"""The server of an org's microservice on this machine, called by others than the control process.

`acme` is the victim, whose model is data alone; code of `lab` runs in a sandbox.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.embedded import FLOWER, IRIS, Platform
from tests.eventually import eventually
from tests.platform.microservices.conftest import predictors
from tests.security.test_local_users import as_nobody, connect, listens_on_tcp, needs_root
from tests.security.test_org_quotas import Attack

from pilotlight.targets.local.supervisor.isolation import sandbox
from pilotlight.wire.unix_socket import SCHEME

pytestmark = pytest.mark.security
# Connects to the socket of another microservice, then puts a link to that in place of its own.
INTRUDER = """
import os
import socket

INPUTS = {"x": ("FP32", [-1, 4])}
OUTPUTS = {"y": ("BYTES", [-1])}


def attempt():
    try:
        folder = os.open(os.path.dirname("SOCKET"), os.O_RDONLY)  # its path may be too long for an address
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(f"/proc/self/fd/{folder}/{os.path.basename('SOCKET')}")
        return "connected"
    except OSError as error:
        return type(error).__name__


class Model:
    def execute(self, inputs):
        import numpy

        found = [attempt()]
        if inputs["x"].any():  # not at the warm-up
            own = f"/cache/{os.environ['INFERENCE_HTTP_PORT']}"
            os.unlink(own)
            os.symlink("SOCKET", own)
        return {"y": numpy.array(found, dtype=object)}
"""


@pytest.fixture(scope="module")
def attack() -> Iterator[Attack]:
    """In a folder that every user may enter: what protects the home is its own mode."""
    folder = Path(tempfile.mkdtemp(prefix="pilotlight-"))
    folder.chmod(0o755)
    env = {
        "PILOTLIGHT_MICROSERVICE_REGISTRY": str(folder / "registry.json"),
        "PILOTLIGHT_WORKSPACE_ROOTS": str(folder / "roots"),
        "PILOTLIGHT_API_ALLOW_CODE": "lab",
        "PILOTLIGHT_PROMETHEUS": "",
    }
    try:
        with Platform(folder / "home", env) as platform:
            yield Attack(platform, folder / "roots")
    finally:
        shutil.rmtree(folder)


def leftovers(attack: Attack) -> list[str]:
    """What replicas leave: copies of models, sockets and caches."""
    home = attack.platform.home
    return [*os.listdir(home.copies), *os.listdir(home.sockets)]


def started(attack: Attack, org: str, artifact: str) -> str:
    """Return the path of a microservice whose model is loaded."""
    at = attack.experiment(org)
    job = attack.ok("POST", f"{at}/inference_microservice/start", attack.train(at, artifact, org), org)["job_id"]
    path = f"{at}/jobs/{job}/inference_microservice"

    def loaded() -> bool:
        status = attack.ok("GET", f"{path}/status", org=org)
        assert status["status"] != "error", status
        return bool(status["model_loaded"])

    eventually(loaded, "the model", pause_s=0.1)
    return path


@pytest.fixture(scope="module")
def victim(attack: Attack) -> Iterator[tuple[str, Path, int]]:
    """Its path in the API, its socket and its process."""
    shutil.copy(IRIS, attack.roots / "acme" / "model.onnx")
    path = started(attack, "acme", "model.onnx")
    job = path.split("/")[-2]
    (pid,), url = predictors(job), attack.platform.status(f"ims-{job}", "acme").url
    yield path, Path(url.removeprefix(SCHEME)), pid
    attack.ok("POST", f"{path}/stop", org="acme")
    assert leftovers(attack) == []


@needs_root
def test_another_user_calls_no_microservice_of_an_org(attack: Attack, victim: tuple[str, Path, int]) -> None:
    path, socket, pid = victim
    assert not listens_on_tcp(pid)
    assert as_nobody(lambda: connect(socket)) == "PermissionError"
    assert connect(socket) == "connected"
    assert attack.ask("POST", f"{path}/inference", FLOWER, "acme").status == 200


def test_the_sandbox_of_another_org_calls_none_and_has_the_control_process_call_none(
    attack: Attack, victim: tuple[str, Path, int]
) -> None:
    if not sandbox.detect().kind:
        pytest.skip(f"neither root nor user namespaces: {sandbox.detect().reason}")
    path, socket, _ = victim
    model = attack.roots / "lab" / "model"
    model.mkdir()
    (model / "model.py").write_text(INTRUDER.replace("SOCKET", str(socket)))
    intruder = started(attack, "lab", "model")
    try:
        outputs = attack.ok("POST", f"{intruder}/inference", FLOWER, "lab")["results"]["outputs"]
        assert outputs[0]["data"] == ["FileNotFoundError"]
        assert attack.ask("POST", f"{intruder}/inference", FLOWER, "lab").status == 202  # no answer of acme's server
        assert not attack.ok("GET", f"{intruder}/status", org="lab")["model_loaded"]
        assert attack.ask("POST", f"{path}/inference", FLOWER, "acme").status == 200
    finally:
        attack.ok("POST", f"{intruder}/stop", org="lab")
    assert len(leftovers(attack)) == 2  # copy and sockets of the victim
