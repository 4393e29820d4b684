"""How the tests of verbs call them: as a user would, with what came out of each stream."""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.embedded import processes_of
from tests.judges import helm
from tests.judges.gomodules import Unavailable
from tests.judges.verdict import absent
from tests.ports import free_port

from pilotlight.targets.local.home_directory import Home
from platformctl import main

ROOT = Path(__file__).resolve().parents[2]


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
