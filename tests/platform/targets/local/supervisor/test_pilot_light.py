"""Predictors forked by a real pilot light, and what happens when there is none."""

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from pathlib import Path

import pytest
from tests.eventually import eventually_async
from tests.platform.targets.local.supervisor.supervisor_harness import IRIS, Stage, alive, launch, program

from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.supervisor import forkserver_client, shim
from pilotlight.targets.local.supervisor.forkserver_client import ENV_SWITCH, PilotLights, family_of, pilot_lights
from pilotlight.targets.local.supervisor.process_inspection import home_processes, replica_processes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a pilot light needs Linux")


async def lit(stage: Stage) -> PilotLights:
    """A stage whose pilot light burns, lit by a first predictor."""
    pilot = stage.pilot
    first = await stage.start(launch("first"))
    assert not first.forked
    await eventually_async(lambda: listens(stage.home.run / "pilot-onnxruntime.sock"))
    return pilot


def listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex(str(path)) == 0


class PilotStage(Stage):
    def __init__(self, folder: Path) -> None:
        self.pilot = PilotLights(Home(folder / "home"), start_delay_s=0.0)
        super().__init__(folder, pilot=self.pilot)


def test_the_second_predictor_is_forked_and_lives_as_any_other(tmp_path: Path) -> None:
    async def play() -> None:
        async with PilotStage(tmp_path) as stage:
            await lit(stage)
            ready = await stage.start(launch("second"))
            assert ready.forked
            assert alive(ready.pid)
            assert set(dict(replica_processes(stage.home)).values()) == {"first", "second"}
            stage.supervisor.drain("second", 30)
            ended = await stage.until("exited", "second")
            assert (ended.exit_code, ended.crashed) == (0, False)

    asyncio.run(play())


def test_how_a_fork_crashed_is_told(tmp_path: Path) -> None:
    async def play() -> None:
        async with PilotStage(tmp_path) as stage:
            await lit(stage)
            ready = await stage.start(launch("second"))
            os.kill(ready.pid, signal.SIGSEGV)
            assert (await stage.until("exited", "second")).reason == "ended by signal 11 (segmentation fault)"

    asyncio.run(play())


@pytest.mark.parametrize("adopted", [False, True], ids=["forked here", "adopted after its pilot light had ended"])
def test_a_fork_whose_pilot_light_has_ended_too_is_not_waited_for(
    tmp_path: Path, adopted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shim, "EXIT_FILE_TIMEOUT_S", 30.0)

    async def play() -> None:
        async with PilotStage(tmp_path) as stage, PilotStage(tmp_path) as heir:
            pilot = await lit(stage)
            ready = await stage.start(launch("second"))
            assert ready.forked
            os.kill(pilot.pids["onnxruntime"], signal.SIGKILL)
            watcher = stage
            if adopted:
                await eventually_async(lambda: not pilot.pids)
                records = stage.supervisor.replicas()
                await stage.supervisor.close(leave_running=True)
                watcher = heir
                heir.supervisor.adopt(records)
            os.kill(ready.pid, signal.SIGKILL)
            killed = time.monotonic()
            ended = await watcher.until("exited", "second")
            assert time.monotonic() - killed < shim.EXIT_FILE_TIMEOUT_S / 2
            assert (ended.exit_code, ended.signal, ended.crashed) == (None, None, True)
            assert "exit status unknown" in ended.reason

    asyncio.run(play())


def test_the_processes_of_a_home_that_was_moved_are_found(tmp_path: Path) -> None:
    async def play() -> None:
        async with PilotStage(tmp_path) as stage:
            pilot = await lit(stage)
            forked = await stage.start(launch("second"))
            moved = stage.home.root.rename(tmp_path / "moved")
            try:
                processes = home_processes(stage.home)
            finally:
                moved.rename(stage.home.root)
            assert processes[pilot.pids["onnxruntime"]] == "pilot light"
            assert processes[forked.pid] == "replica second"

    asyncio.run(play())


def test_a_variable_that_a_fork_cannot_follow_means_a_fresh_process_said_aloud(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def play() -> None:
        async with PilotStage(tmp_path) as stage:
            await lit(stage)
            ready = await stage.start(launch("second", env={**IRIS, "MALLOC_ARENA_MAX": "2"}))
            assert not ready.forked

    with caplog.at_level(logging.WARNING):
        asyncio.run(play())
    assert any("MALLOC_ARENA_MAX" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("heard", [True, False], ids=["and it was heard of", "unheard of yet"])
def test_a_pilot_light_that_hangs_or_dies_delays_a_start_and_loses_none(
    tmp_path: Path, heard: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forkserver_client, "REPLY_S", 1.0)

    async def play() -> None:
        async with PilotStage(tmp_path) as stage:
            pilot = await lit(stage)
            pid = pilot.pids["onnxruntime"]
            os.kill(pid, signal.SIGSTOP)
            assert not (await stage.start(launch("second"))).forked
            os.kill(pid, signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # without a turn of the loop, which would tell of it
            if heard:
                await eventually_async(lambda: "onnxruntime" not in pilot.pids)
            assert not (await stage.start(launch("third"))).forked
            await eventually_async(lambda: pilot.pids.get("onnxruntime", pid) != pid)

    asyncio.run(play())


def test_a_pilot_light_that_another_supervisor_lit_is_used_and_put_out(tmp_path: Path) -> None:
    async def play() -> None:
        async with PilotStage(tmp_path) as stage:
            pilot = await lit(stage)
            pid = pilot.pids["onnxruntime"]
            await stage.supervisor.close(leave_running=True)
            assert alive(pid)
            async with PilotStage(tmp_path) as heir:
                assert (await heir.start(launch("second"))).forked
                assert heir.pilot.pids["onnxruntime"] == pid
            await eventually_async(lambda: not alive(pid))

    asyncio.run(play())


def test_an_orphan_that_was_forked_is_found_and_ended(tmp_path: Path) -> None:
    async def play() -> None:
        async with PilotStage(tmp_path) as stage:
            await lit(stage)
            orphan = await stage.start(launch("second"))
            await stage.supervisor.close(leave_running=True)
            async with PilotStage(tmp_path) as heir:
                heir.supervisor.adopt([])
                await eventually_async(lambda: not alive(orphan.pid))

    asyncio.run(play())


def test_no_pilot_light_is_lit_for_what_is_no_predictor(tmp_path: Path) -> None:
    async def play() -> None:
        async with Stage(tmp_path, python=program(tmp_path, "exit 3"), pilot=PilotLights(Home(tmp_path))) as stage:
            stage.supervisor.launch(launch(command=("python", "-m", "pilotlight.gateway", "route"), env={}))
            await stage.until("exited")
            assert not list(stage.home.run.glob("pilot-*"))

    asyncio.run(play())


def test_pilot_lights_can_be_switched_off(tmp_path: Path) -> None:
    assert pilot_lights(Home(tmp_path), {}) is not None
    assert pilot_lights(Home(tmp_path), {ENV_SWITCH: "off"}) is None


@pytest.mark.parametrize(
    ("path", "family"),
    [
        ("/models/iris/model.onnx", "onnxruntime"),
        ("s3://bucket/model.pt2", "torch-export"),
        ("/m/model.pt", "torch"),
        ("/m/wine.skops", "skops"),
        ("/m/model.safetensors", "torch"),
        ("/m/model.py", "python"),
        ("/m/wine.joblib", "sklearn"),
        ("hf://org/repo", "onnxruntime"),
        ("", "onnxruntime"),
    ],
)
def test_the_family_follows_from_the_file(path: str, family: str) -> None:
    assert family_of({"INFERENCE_MODEL_PATH": path}) == family


@pytest.mark.parametrize(
    ("files", "family"),
    [
        (["net/1/model.pt", "net/config.pbtxt"], "torch"),
        (["a/1/model.py", "b/1/model.safetensors"], "torch"),
        (["a/1/model.py", "b/1/model.onnx"], "python"),
        (["a/1/model.onnx"], "onnxruntime"),
        ([], "onnxruntime"),
    ],
)
def test_the_family_of_a_folder_is_told_by_what_lies_in_it(tmp_path: Path, files: list[str], family: str) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert family_of({"INFERENCE_MODEL_PATH": str(tmp_path)}) == family
