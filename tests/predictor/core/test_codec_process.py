"""The process that decodes huge JSON: its results, its errors, its limits and its end."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.eventually import eventually

from pilotlight_predictor.core import codec_process
from pilotlight_predictor.core.codec_process import CodecProcess
from pilotlight_predictor.core.generation_params import BadField
from pilotlight_predictor.core.tensors import decode_raw
from pilotlight_predictor.errors import BadRequest, RequestTooLarge
from pilotlight_predictor.protocols.openai.request import read_body, read_chat


@pytest.fixture(scope="module")
def shared() -> Iterator[CodecProcess]:
    helper = CodecProcess()
    yield helper
    helper.close()


def test_tensors_come_back(shared: CodecProcess) -> None:
    numbers = shared.call(decode_raw, "x", "FP32", (2, 2), memoryview(np.arange(4, dtype="<f4").tobytes()))
    assert np.array_equal(numbers.array, [[0, 1], [2, 3]])
    strings = shared.call(decode_raw, "x", "BYTES", (2,), b"\1\0\0\0a\0\0\0\0")
    assert strings.array.tolist() == [b"a", b""]
    assert shared.call(os.getpid) != os.getpid()


def test_errors_come_back_with_their_fields(shared: CodecProcess) -> None:
    with pytest.raises(BadRequest, match="takes 12 bytes, got 4"):
        shared.call(decode_raw, "x", "FP32", (3,), bytes(4))
    with pytest.raises(BadField, match="at least one message") as caught:
        shared.call(read_body, read_chat, b'{"messages":[]}')
    assert caught.value.field == "messages"


def test_memory_is_limited(shared: CodecProcess) -> None:
    pid = shared.call(os.getpid)
    with pytest.raises(RequestTooLarge, match="more than 1 GiB of memory"):
        shared.call(bytearray, codec_process.MAX_MEMORY)
    assert shared.call(os.getpid) == pid, "it goes on"


def test_a_process_that_was_killed_is_replaced() -> None:
    helper = CodecProcess()
    first = helper.call(os.getpid)
    os.kill(first, signal.SIGKILL)
    second = helper.call(os.getpid)
    assert second != first
    with pytest.raises(RequestTooLarge):
        helper.call(os._exit, 1)  # each process that is asked ends


def test_without_a_process_the_thread_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent")
    assert CodecProcess().call(os.getpid) == os.getpid()


def test_it_ends_when_it_is_idle() -> None:
    program = f"import {codec_process.__name__} as module; module.IDLE_S = 0.1; module._serve()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as process:
        assert process.wait(60) == 0


def test_it_ends_with_its_parent() -> None:
    program = (
        "import os; from pilotlight_predictor.core.codec_process import CodecProcess\n"
        "print(CodecProcess().call(os.getpid), flush=True); os.kill(os.getpid(), 9)"
    )
    pid = int(subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=False).stdout)
    eventually(lambda: not Path(f"/proc/{pid}/exe").exists(), lambda: f"process {pid} still runs", 60)
