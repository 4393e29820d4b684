"""How the tests of verbs call them: as a user would, with what came out of each stream."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.judges import helm
from tests.judges.gomodules import Unavailable
from tests.judges.verdict import absent

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


@pytest.fixture(scope="session")
def real_helm() -> str:
    try:
        return helm.helm()
    except Unavailable as reason:
        absent(reason)
