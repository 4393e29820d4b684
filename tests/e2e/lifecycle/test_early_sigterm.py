"""SIGTERM before anything is ready: whoever starts ends at once, also as the first process of a container."""

import json
import signal
import subprocess
import sys

import pytest
from tests.embedded import IRIS
from tests.images.test_containerfile import rests

PATIENCE_S = 60.0
PREDICTOR = ("-m", "pilotlight_predictor", "--model-path", str(IRIS), "--http-port", "0", "--metrics-port", "-1")
GATEWAY = ("-m", "pilotlight.gateway", "route")
# The same process, which has told itself to end before it becomes another program. Blocked, that waits; else it is over
# at once, or, to the first process of a container, has never been.
TOLD = """
import os, signal, sys
os.kill(os.getpid(), signal.SIGTERM)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def ended(*words: str) -> int:
    """How the command ends; whatever serves on is killed."""
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        return process.wait(PATIENCE_S)
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("words", [PREDICTOR, GATEWAY], ids=["predictor", "gateway"])
def test_one_that_was_blocked_while_python_started_is_heard(words: tuple[str, ...]) -> None:
    assert ended("env", "--block-signal=TERM", sys.executable, "-c", TOLD, *words) == -signal.SIGTERM


def test_the_first_process_of_a_container_hears_it_as_the_image_starts_it() -> None:
    """There the kernel drops a signal without a handler; a grace of minutes would go by."""
    first = ("unshare", "--pid", "--fork", "--kill-child")
    if subprocess.run([*first, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs the right to make a namespace of processes")
    entry = json.loads(rests("ENTRYPOINT")[0])
    python = entry.index("python")
    words = [*entry[:python], sys.executable, "-c", TOLD, *entry[python + 1 :], *PREDICTOR[2:]]
    assert ended(*first, *words) == 128 + signal.SIGTERM
