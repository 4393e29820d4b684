"""What the start put off is made up for beside requests: they get the interpreter soon, and no walk holds them up."""

import asyncio
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import Serve
from tests.predictor.scheduling.instances import PATIENCE_S
from tests.predictor.zoo import write_python
from tests.serving import START_S, RunningServer, json_tensor

from pilotlight_predictor.core.threads import LOADED_INTERVAL_S, in_thread_under_load, limit_switch_interval

USUAL_S = 0.004
# Each time that memory was declared to be kept: how often all of it had been walked, and how much of it is kept.
WALKS = """
import gc

import numpy as np

INPUTS = {"x": ("FP32", [1])}
OUTPUTS = {"y": ("INT64", [-1])}
walks, kept = [], []
gc.callbacks.append(lambda phase, info: walks.append(phase) if info["generation"] == 2 else None)
usual = gc.freeze


def freeze():
    usual()
    kept.append((len(walks), gc.get_freeze_count()))


gc.freeze = freeze


def predict(x):
    return np.array(kept, dtype=np.int64).ravel()
"""

# How long a thread had to wait for the interpreter while the model was loaded, and how long it has to now.
WAITS = """
import sys

import numpy as np

INPUTS = {"x": ("FP32", [1])}
OUTPUTS = {"y": ("FP64", [2])}
loading = sys.getswitchinterval()


def predict(x):
    return np.array([loading, sys.getswitchinterval()])
"""


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(USUAL_S)
    yield
    sys.setswitchinterval(before)


def wait_s() -> float:
    return pytest.approx(sys.getswitchinterval(), abs=1e-6)  # type: ignore[no-any-return]


def test_the_wait_for_the_interpreter_is_short_until_the_last_work_ends() -> None:
    async def scene() -> None:
        first, second = threading.Event(), threading.Event()
        works = [in_thread_under_load(lambda gate=gate: gate.wait(PATIENCE_S)) for gate in (first, second)]
        assert wait_s() == LOADED_INTERVAL_S
        first.set()
        assert await works[0]
        await asyncio.sleep(0)
        assert wait_s() == LOADED_INTERVAL_S
        second.set()
        assert await works[1]
        await asyncio.sleep(0)

    asyncio.run(scene())
    assert wait_s() == USUAL_S


def test_work_that_fails_leaves_the_wait_as_it_was() -> None:
    async def scene() -> None:
        with pytest.raises(ZeroDivisionError):
            await in_thread_under_load(lambda: 1 // 0)
        await asyncio.sleep(0)

    asyncio.run(scene())
    assert wait_s() == USUAL_S


def test_a_shorter_wait_that_somebody_chose_stands() -> None:
    async def scene() -> float:
        return await in_thread_under_load(sys.getswitchinterval)

    sys.setswitchinterval(LOADED_INTERVAL_S / 2)
    assert asyncio.run(scene()) == pytest.approx(LOADED_INTERVAL_S / 2, abs=1e-6)


def test_a_shorter_wait_that_a_load_asks_for_stands_when_the_load_is_over() -> None:
    async def scene() -> None:
        await in_thread_under_load(lambda: limit_switch_interval(3 * LOADED_INTERVAL_S))
        await asyncio.sleep(0)

    asyncio.run(scene())
    assert wait_s() == pytest.approx(3 * LOADED_INTERVAL_S, abs=3e-6)
    limit_switch_interval(2 * LOADED_INTERVAL_S)
    limit_switch_interval(3 * LOADED_INTERVAL_S)  # it only ever becomes shorter
    assert wait_s() == pytest.approx(2 * LOADED_INTERVAL_S, abs=3e-6)


def told(server: RunningServer) -> list[float]:
    answer = server.infer("m", {"inputs": [json_tensor("x", "FP32", [1], [1.0])]})
    return list(answer.json()["outputs"][0]["data"])


def test_a_model_is_loaded_beside_requests(tmp_path: Path, serve: Serve) -> None:
    write_python(tmp_path, "m", WAITS)
    server = serve(tmp_path, "--model-control-mode", "explicit")
    assert server.post("/v2/repository/models/m/load").status == 200
    assert told(server)[0] == pytest.approx(LOADED_INTERVAL_S, abs=1e-6)
    server.wait_until(lambda: told(server)[1] > LOADED_INTERVAL_S * 2, "done with what it put off")


def test_what_is_imported_after_ready_is_kept_without_a_walk_over_the_memory(tmp_path: Path, serve: Serve) -> None:
    write_python(tmp_path, "m", WALKS)
    server = serve(tmp_path)
    server.wait_until(lambda: len(told(server)) == 4, "done with its imports", START_S)
    walks, kept, walks_then, kept_then = told(server)
    assert walks_then == walks
    assert kept_then > kept
