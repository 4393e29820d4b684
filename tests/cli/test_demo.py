"""`platformctl demo` end to end: the example models, the real predictor, the real answers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from platformctl import main
from platformctl.commands import demo


def test_the_demo_serves_the_examples_and_gets_right_answers() -> None:
    command = [sys.executable, "-m", "platformctl", "demo", "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    answers = {answer["model"]: answer["answer"] for answer in result["answers"]}
    assert answers["iris"].startswith("setosa")
    assert answers["file_type"].startswith("python")
    assert answers["vad"].startswith("speech with probability 0.")
    assert result["phases"]
    assert "curl http://127.0.0.1:" in done.stderr


def test_without_a_checkout_it_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "EXAMPLES", tmp_path)
    assert main.run(["demo"]) == 3
    assert "run it in a checkout" in capsys.readouterr().err
