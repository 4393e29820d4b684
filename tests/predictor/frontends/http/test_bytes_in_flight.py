"""What happens to requests on their way while models are reloaded, unloaded or die."""

import asyncio
import gc
from pathlib import Path

import pytest
from tests.eventually import eventually_async
from tests.onnx_models import write_python
from tests.predictor.in_process_server import House, play, write_ensemble, write_times

from pilotlight_predictor.backends.python.backend import PythonInstance
from pilotlight_predictor.errors import NotFound, NotReady

# Multiplies by two once the file `go` exists; tells that it began and that it was finalised.
HELD = """
import pathlib
import time

FOLDER = pathlib.Path({folder!r})
INPUTS = {{"x": ("FP32", [-1, 1])}}
OUTPUTS = {{"y": ("FP32", [-1, 1])}}


class Model:
    def execute(self, inputs):
        if inputs["x"].any():  # zeros are the warm-up
            (FOLDER / "began").touch()
            while not (FOLDER / "go").exists():
                time.sleep(0.001)
        return {{"y": inputs["x"] * 2}}

    def finalize(self):
        (FOLDER / "finalised").touch()
"""
EXITING = """
import sys

INPUTS = {"x": ("FP32", [-1, 1])}
OUTPUTS = {"y": ("FP32", [-1, 1])}


def predict(x):
    if x.any():
        sys.exit(3)
    return {"y": x}
"""


def write_held(repository: Path, folder: Path, name: str = "held") -> None:
    folder.mkdir(exist_ok=True)
    write_python(repository, name, HELD.format(folder=str(folder)))


def test_unload_finishes_what_is_in_flight_and_then_finalises(tmp_path: Path) -> None:
    async def scene() -> None:
        write_held(tmp_path / "models", tmp_path / "signs")
        house = await House(tmp_path / "models", mode="explicit", model={"load_models": ("*",)}).start()
        answer = asyncio.ensure_future(house.ask("held", 21))
        await eventually_async((tmp_path / "signs/began").exists)
        await house.control.unload("held", False)
        assert house.states() == {"held/1": "UNLOADING"}
        with pytest.raises(NotFound, match="unloaded"):
            await house.ask("held")
        assert not (tmp_path / "signs/finalised").exists()
        (tmp_path / "signs/go").touch()
        assert await answer == 42
        await eventually_async(lambda: house.states() == {"held/1": "UNAVAILABLE"})
        assert (tmp_path / "signs/finalised").exists()

    play(scene())


def test_a_reload_answers_old_requests_from_the_old_and_new_ones_from_the_new(tmp_path: Path) -> None:
    async def scene() -> None:
        write_held(tmp_path / "models", tmp_path / "signs", "m")
        house = await House(tmp_path / "models", mode="poll").start()
        answer = asyncio.ensure_future(house.ask("m", 10))
        await eventually_async((tmp_path / "signs/began").exists)
        write_times(tmp_path / "models", "m", 7)
        await house.polled()
        assert await house.ask("m", 10) == 70
        assert not answer.done()
        (tmp_path / "signs/go").touch()
        assert await answer == 20

    play(scene())


def test_no_request_that_was_accepted_is_lost_while_models_come_and_go(tmp_path: Path) -> None:
    """Every answer is the right number or, for a model not loaded at that moment, a clear refusal at once."""

    async def scene() -> None:
        write_times(tmp_path, "two", 2)
        write_ensemble(tmp_path, "ensemble", "two", "two")
        house = await House(tmp_path, mode="explicit", model={"load_models": ("*",)}).start()
        accepted, refused, over = 0, 0, False

        async def asks(model: str, expected: float) -> None:
            nonlocal accepted, refused
            while not over:
                try:
                    answer = await house.ask(model, 1)
                except (NotFound, NotReady):
                    refused += 1
                    await asyncio.sleep(0.001)
                    continue
                assert answer == expected, answer
                accepted += 1

        askers = [asyncio.ensure_future(asks(m, n)) for m, n in (("two", 2), ("two", 2), ("ensemble", 4))]
        rounds = 0
        while rounds < 15 or ((accepted <= 15 or not refused) and not any(asker.done() for asker in askers)):
            await house.control.unload("two", False)
            await asyncio.sleep(0.002)
            await house.control.load("two", None, {})
            await asyncio.sleep(0.002)
            rounds += 1
        over = True
        await asyncio.gather(*askers)

    play(scene())


def test_a_model_that_exits_drops_the_servers_readiness_until_it_is_loaded_again(tmp_path: Path) -> None:
    async def scene() -> None:
        write_python(tmp_path, "m", EXITING)
        house = await House(tmp_path, mode="explicit", model={"load_models": ("*",)}).start()
        assert house.server.readiness().ready
        await house.ask("m", 1)
        verdict = house.server.readiness()
        assert not verdict.ready
        assert verdict.reason == "model 'm': the model raised SystemExit"
        assert house.states() == {"m/1": "UNAVAILABLE"}
        await house.control.load("m", None, {})
        assert house.server.readiness().ready

    play(scene())


@pytest.mark.long
def test_nothing_of_an_unloaded_or_replaced_model_stays_in_memory(tmp_path: Path) -> None:
    def instances() -> int:
        gc.collect()
        found = (thing for thing in gc.get_objects() if type(thing) is PythonInstance)
        return sum(thing._name == "remembered" for thing in found)

    async def scene() -> None:
        write_times(tmp_path, "remembered", 2)
        house = await House(tmp_path, mode="explicit", model={"load_models": ("*",)}).start()
        for _ in range(3):
            assert await house.ask("remembered") == 2
            await house.control.load("remembered", None, {})
        assert await house.ask("remembered") == 2
        await eventually_async(lambda: instances() == 1)
        await house.control.unload("remembered", False)
        await eventually_async(lambda: instances() == 0)

    play(scene())
