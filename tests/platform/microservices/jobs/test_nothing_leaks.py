"""Planted secrets: the model gets them, and no output, argument, file, log or error of any verb ever shows one."""

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.embedded import Platform
from tests.platform.microservices.conftest import QUICK
from tests.platform.microservices.jobs.conftest import Ctl, write_model

from pilotlight.targets.secret_redaction import NAMES

PLANTED = {name: f"planted-{number}-value-of-{name.lower()}" for number, name in enumerate(NAMES)}
# Told by its length; and a model that is careless enough to write them down, in its log and in its errors.
CARELESS = f"""
import os
import sys
import numpy as np

INPUTS = {{"messages": ("BYTES", [1])}}
OUTPUTS = {{"text_output": ("BYTES", [1])}}
FOUND = [name for name in {list(NAMES)!r} if os.environ.get(name)]
print("the token is", *(os.environ[name] for name in FOUND), file=sys.stderr, flush=True)


def predict(messages):
    return {{"text_output": np.array([" ".join(FOUND).encode()], dtype=object)}}
"""
OWN_WORDS = re.compile(r"^the token is .*$", re.MULTILINE)
BROKEN = f"import os\nraise RuntimeError('denied: ' + ' '.join(os.environ.get(name, '') for name in {list(NAMES)!r}))\n"


def seen(text: str) -> list[str]:
    return [name for name, value in PLANTED.items() if value in text]


def arguments() -> str:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found.append((folder / "cmdline").read_bytes().decode(errors="replace"))
    return "\n".join(found)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """A platform whose own environment has them all."""
    with Platform(tmp_path_factory.mktemp("planted") / "home", {**QUICK, **PLANTED}) as platform:
        yield platform


@pytest.fixture
def ctl(ctl: Ctl, planted: Platform) -> Iterator[Ctl]:
    made = Ctl({**ctl.environ, "PILOTLIGHT_HOME": str(planted.home.root)}, ctl.folder)
    yield made
    for job_id in [name for name in made.registry if name != "latest"]:
        made.run("stop", job_id)


def written(ctl: Ctl) -> dict[Path, str]:
    """Files of the test and of the platform, without what the careless model itself wrote down."""
    folders = (ctl.folder, Path(ctl.environ["PILOTLIGHT_HOME"]))
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return {path: OWN_WORDS.sub("", path.read_text(errors="replace")) for path in files}


@pytest.fixture
def said(ctl: Ctl) -> Iterator[list[subprocess.CompletedProcess[str]]]:
    """Everything that any verb prints; looked at when the test has ended."""
    done: list[subprocess.CompletedProcess[str]] = []
    yield done
    assert done
    assert not [(each.args, seen(each.stdout + each.stderr)) for each in done if seen(each.stdout + each.stderr)]


def test_a_secret_reaches_the_model_by_name_and_shows_nowhere(
    ctl: Ctl, tmp_path: Path, said: list[subprocess.CompletedProcess[str]]
) -> None:
    model = write_model(tmp_path / "careless", CARELESS)
    names = [word for name in NAMES for word in ("--secret", name)]
    for words in (
        ["start", "pilotlight", "--model-path", str(model), *names, "--ready"],
        ["infer", "--prompt", "x", "--accept-defaults"], ["status"], ["list", "-o", "json"], ["logs", "--tail", "99"],
        ["infer", "--prompt", f"my token is {PLANTED['HF_TOKEN']}", "--accept-defaults"],
        ["start", "pilotlight", "--model-path", f"/{PLANTED['TAO_API_KEY']}"],
        ["start", "pilotlight", "--model-path", "/", "--env", f"WANDB_API_KEY={PLANTED['WANDB_API_KEY']}"],
        ["start", "pilotlight", "--model-path", "/", "--env", f"NOTE={PLANTED['secret_key']}"],
    ):  # fmt: skip
        said.append((ctl.run if said else ctl.apart)(*words, **PLANTED))
        assert not seen(arguments())
    assert [each.returncode for each in said] == [0, 0, 0, 0, 0, 2, 2, 2, 2]
    assert said[1].stdout.split() == list(NAMES)
    assert "<HF_TOKEN>" in said[4].stdout
    assert not seen(json.dumps(ctl.registry))
    assert [path for path in written(ctl) if path.suffix == ".log"]
    assert not [path for path, text in written(ctl).items() if seen(f"{path}\n{text}")], "while it runs"
    said.append(ctl.run("stop", "--yes", **PLANTED))
    assert not [path for path, text in written(ctl).items() if seen(f"{path}\n{text}")]


def test_an_error_that_holds_a_secret_is_told_without_it(
    ctl: Ctl, tmp_path: Path, said: list[subprocess.CompletedProcess[str]]
) -> None:
    broken = write_model(tmp_path / "broken", BROKEN)
    words = ("start", "pilotlight", "--model-path", str(broken), "--secret", "TAO_USER_KEY", "--ready")
    said.append(ctl.run(*words, **PLANTED))
    said.extend(ctl.run(*each, **PLANTED) for each in (("status",), ("logs",), ("list",)))
    said.append(ctl.run("infer", "--prompt", "x", "--accept-defaults", **PLANTED))
    assert said[0].returncode == 1
    assert "denied: <HF_TOKEN>" in said[0].stderr
    assert "denied: <HF_TOKEN>" in said[1].stdout


def test_secrets_that_nobody_named_do_not_reach_the_model(ctl: Ctl, tmp_path: Path) -> None:
    model = write_model(tmp_path / "careless", CARELESS)
    done = ctl.run("start", "pilotlight", "--model-path", str(model), "--ready", **PLANTED)
    assert done.returncode == 0, done.stderr
    assert ctl.do("infer", "--prompt", "x", "--accept-defaults").split() == ["HF_TOKEN"]
