"""`platformctl demo` end to end: the example models, the real predictor, the real answers."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
from tests.cli.conftest import ROOT

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
    assert "demo --keep (make demo KEEP=1) leaves it running" in done.stderr
    assert "curl http://127.0.0.1:PORT/status" in done.stderr, "an address where nobody answers any more"


def test_kept_running_it_answers_at_the_address_it_tells_until_interrupted() -> None:
    command = [sys.executable, "-m", "platformctl", "demo", "--keep"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as running:
        try:
            said = "".join(iter(lambda: _line(running), "Serving until Ctrl-C"))
            url = re.search(r"curl (http://127\.0\.0\.1:\d+/status)", said)
            assert url is not None, said
            with urlopen(url.group(1), timeout=30) as reply:
                assert json.load(reply)["state"] == "ready"
        finally:
            running.send_signal(signal.SIGINT)
            last_words = running.communicate(timeout=60)[1]  # to the end: a closed pipe would break its last words
    assert running.returncode == 0, last_words


def _line(running: "subprocess.Popen[str]") -> str:
    assert running.stderr is not None
    line = running.stderr.readline()
    assert line, "it ended before it served"
    return line.rstrip("\n")


@pytest.mark.parametrize(("words", "ending"), [([], "platformctl demo"), (["KEEP=1"], "platformctl demo --keep")])
def test_make_passes_on_that_it_shall_be_kept(words: list[str], ending: str) -> None:
    alone = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(["make", "-n", "demo", *words], cwd=ROOT, capture_output=True, text=True, env=alone)
    assert done.stdout.rstrip().endswith(ending), done.stderr


def test_without_a_checkout_it_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "EXAMPLES", tmp_path)
    assert main.run(["demo"]) == 3
    assert "run it in a checkout" in capsys.readouterr().err
