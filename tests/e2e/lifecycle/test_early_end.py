"""SIGTERM before anything is ready: whoever starts ends at once, also as the first process of a container."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.embedded import IRIS
from tests.images.test_containerfile import rests

PATIENCE_S = 60.0
ENDED = 128 + signal.SIGTERM
PREDICTOR = ("-m", "pilotlight_predictor", "--model-path", str(IRIS), "--http-port", "0", "--metrics-port", "-1")
GATEWAY = ("-m", "pilotlight.gateway", "route")


@pytest.mark.parametrize("words", [PREDICTOR, GATEWAY], ids=["predictor", "gateway"])
def test_one_that_came_while_python_started_is_heard(words: tuple[str, ...]) -> None:
    """Blocked, as the image has it until there is a handler; left so, it would never be heard."""
    blocked = ("env", "--block-signal=TERM", sys.executable, *words)
    process = subprocess.Popen(blocked, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        _await_program(process.pid, "python")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == ENDED, process.stderr and process.stderr.read()
    finally:
        process.kill()
        process.communicate()


def test_the_first_process_of_a_container_hears_it_as_the_image_starts_it() -> None:
    """There the kernel drops a signal without a handler; a grace of minutes would go by."""
    first = ("unshare", "--pid", "--fork", "--kill-child")
    if subprocess.run([*first, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs the right to make a namespace of processes")
    entrypoint = [sys.executable if word == "python" else word for word in json.loads(rests("ENTRYPOINT")[0])]
    words = [*first, *entrypoint, *PREDICTOR[2:]]
    outside = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        pid = _child(outside.pid)
        _await_program(pid, "python")
        os.kill(pid, signal.SIGTERM)
        assert outside.wait(PATIENCE_S) == ENDED
    finally:
        outside.kill()
        outside.wait()


def _await_program(pid: int, name: str) -> None:
    """Until the process is that program: before that, `env` may not have blocked the signal yet."""
    while not os.readlink(f"/proc/{pid}/exe").rpartition("/")[2].startswith(name):
        pass


def _child(pid: int) -> int:
    while True:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if found:
            return int(found[0])
