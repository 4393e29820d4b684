"""How the tests of verbs call them: as a user would, with what came out of each stream."""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.embedded import IRIS, Platform, processes_of
from tests.judges import helm
from tests.judges.gomodules import Unavailable
from tests.judges.verdict import absent
from tests.ports import free_port

from pilotlight.targets.local.home_directory import Home
from platformctl import main

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: iris
  annotations: {autoscaling.knative.dev/window: 60s}
spec:
  predictor:
    minReplicas: 1
    maxReplicas: 3
    model:
      modelFormat: {name: onnx}
      protocolVersion: v2
      storageUri: ./model.onnx
"""
FLOWER = "[5.1, 3.5, 1.4, 0.2]"


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


Call = Callable[..., Done]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """call("render", "-f", …): run in the root of the repository, without variables of the caller's."""
    monkeypatch.chdir(ROOT)
    for name in ("PILOTLIGHT_CATALOG", "PILOTLIGHT_NAMESPACE"):
        monkeypatch.delenv(name, raising=False)

    def made(*argv: str) -> Done:
        code = main.run(argv)
        out, err = capsys.readouterr()
        return Done(code, out, err)

    return made


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """Home of a platform of the test's own. Whatever it leaves running is ended by its number, and is a failure."""
    found = Home(tmp_path / "home")
    yield found
    left = processes_of(found)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, "the test has left processes behind"


@pytest.fixture
def environ(home: Home) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PILOTLIGHT_", "INFERENCE_"))}
    gateway, api = free_port(), free_port()
    return {
        **clean, "PILOTLIGHT_HOME": str(home.root), "PILOTLIGHT_GATEWAY_PORT": str(gateway),
        "PILOTLIGHT_API_PORT": str(api), "PILOTLIGHT_SERVICE_PORTS": "0", "PILOTLIGHT_PILOT_LIGHT": "off",
    }  # fmt: skip


@pytest.fixture(scope="session")
def real_helm() -> str:
    try:
        return helm.helm()
    except Unavailable as reason:
        absent(reason)


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """A platform of the module's own; verbs use it with `at_home`."""
    with Platform(tmp_path_factory.mktemp("home")) as running:
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Manifests of a service: as it is, changed, and with a model that cannot be loaded."""
    made = tmp_path_factory.mktemp("documents")
    (made / "model.onnx").write_bytes(IRIS.read_bytes())
    (made / "broken.onnx").write_text("this is no model")
    (made / "iris.yaml").write_text(DOCUMENT)
    (made / "new.yaml").write_text(DOCUMENT.replace("maxReplicas: 3", "maxReplicas: 4"))
    (made / "broken.yaml").write_text(DOCUMENT.replace("./model.onnx", "./broken.onnx"))
    return made


@pytest.fixture
def at_home(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILOTLIGHT_HOME", str(platform.home.root))
