"""Planted secrets: the model gets them, and no output, argument, file, log or error of any verb ever shows one."""

import json
import os
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
BROKEN = f"import os\nraise RuntimeError('denied: ' + ' '.join(os.environ.get(name, '') for name in {list(NAMES)!r}))\n"


def seen(text: str) -> list[str]:
    return [name for name, value in PLANTED.items() if value in text]


def arguments() -> str:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found.append((folder / "cmdline").read_bytes().decode(errors="replace"))
    return "\n".join(found)


@pytest.fixture
def ctl(ctl: Ctl, tmp_path: Path) -> Iterator[Ctl]:
    """With a platform whose own environment has them all."""
    with Platform(tmp_path / "home", {**QUICK, **PLANTED}):
        yield Ctl({**ctl.environ, "PILOTLIGHT_HOME": str(tmp_path / "home")}, tmp_path)


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
        said.append(ctl.apart(*words, **PLANTED))
        assert not seen(arguments())
    assert [each.returncode for each in said] == [0, 0, 0, 0, 0, 2, 2, 2, 2]
    assert said[1].stdout.split() == list(NAMES)
    assert "<HF_TOKEN>" in said[4].stdout
    assert not seen(json.dumps(ctl.registry))
    assert not seen(json.dumps([os.fspath(path) for path in tmp_path.rglob("*")]))
    said.append(ctl.run("stop", "--yes", **PLANTED))
    files = [path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file()]
    assert not seen("\n".join(files))


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


def test_nothing_that_we_write_holds_one_while_it_runs(ctl: Ctl, tmp_path: Path, model: Path) -> None:
    names = [word for name in NAMES for word in ("--secret", name)]
    done = ctl.run("start", "pilotlight", "--model-path", str(model), "--ready", *names, **PLANTED)
    assert done.returncode == 0, done.stderr
    ctl.do("infer", "--prompt", "x", "--accept-defaults", **PLANTED)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in files if path.suffix == ".log"]
    assert not [path for path in files if seen(path.read_text(errors="replace"))]
