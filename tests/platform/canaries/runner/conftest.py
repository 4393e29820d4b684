"""A platform of this folder's own, its verbs as a user types them, and revisions of the iris example, good and bad."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.embedded import IRIS, Load, Platform, inference_service, load

from pilotlight.canaries import stored_history
from pilotlight.canaries.canary_state import Canary, CanaryHistory
from platformctl import main

KEY = ("default", "iris")
ASK = "/iris/v2/models/iris/infer"
# The flowers of the example, answered by code that a test chooses; zeros are what warm-ups and probes send.
BAD = """
import time
INPUTS = {"x": ("FP32", [-1, 4])}
OUTPUTS = {"y": ("FP32", [-1, 4])}

def predict(x):
    if x.any():
        FAULT
    return x
"""
# Bounds that a busy machine does not cross: what noise does to a comparison is simulated elsewhere.
CHECKS = ("--check", "error_rate<25%", "--check", "p50_ms<600")
PACE = ("--interval", "500ms", "--min-requests", "20", "--keep-stable", "1s", "--timeout", "120", *CHECKS)
QUICK = ("--steps", "30,100", "--bake", "1s", *PACE)


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


Call = Callable[..., Done]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    with Platform(tmp_path_factory.mktemp("canaries") / "home") as running:
        yield running


@pytest.fixture
def platform(shared: Platform, monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    """With the iris example, which serves."""
    monkeypatch.setenv("PILOTLIGHT_HOME", str(shared.home.root))
    shared.deploy(iris())
    shared.wait_phase("Ready")
    yield shared
    shared.empty()


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    def made(*argv: str) -> Done:
        code = main.run(argv)
        out, err = capsys.readouterr()
        return Done(code, out, err)

    return made


@pytest.fixture
def traffic(platform: Platform) -> Iterator[Load]:
    """Somebody asks all the time."""
    with load(platform, ASK, clients=1) as running:
        yield running


def iris(uri: str = "", *, most: int = 3, annotations: str = "", form: str = "onnx") -> str:
    return inference_service("iris", form, uri or IRIS.as_uri(), least=1, most=most, annotations=annotations)


def better(folder: Path) -> Path:
    """The same model in another revision."""
    return written(folder, "better.yaml", iris(most=2))


def worse(folder: Path, fault: str) -> Path:
    """A revision that loads, answers its warm-up, and then does this to every request."""
    code = folder / "worse"
    code.mkdir(exist_ok=True)
    (code / "model.py").write_text(BAD.replace("FAULT", fault))
    return written(folder, "worse.yaml", iris(code.as_uri(), form="python"))


def written(folder: Path, name: str, document: str) -> Path:
    path = folder / name
    path.write_text(document)
    return path


def ledger(platform: Platform) -> CanaryHistory:
    return stored_history.decode_history(platform.target.canary(KEY))


def current(platform: Platform) -> Canary:
    found = ledger(platform).current
    assert found is not None, platform.log()
    return found


@pytest.fixture
def beside() -> Iterator[Callable[[Callable[[], object]], threading.Thread]]:
    """Runs something while the test goes on, and waits for it in the end."""
    started: list[threading.Thread] = []

    def start(work: Callable[[], object]) -> threading.Thread:
        started.append(threading.Thread(target=work))
        started[-1].start()
        return started[-1]

    yield start
    for thread in started:
        thread.join(60)
