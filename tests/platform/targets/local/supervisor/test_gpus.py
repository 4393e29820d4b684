"""GPUs go to one replica each; who finds none waits, and says for whom."""

import asyncio
from pathlib import Path

from tests.eventually import eventually_async
from tests.platform.targets.local.supervisor.supervisor_harness import Stage, launch, lines, program

from pilotlight.targets.local.supervisor.gpus import Device


def test_a_replica_waits_for_a_gpu_and_starts_when_one_is_released(tmp_path: Path) -> None:
    script = program(tmp_path, "echo $CUDA_VISIBLE_DEVICES; exec sleep 600")

    async def play() -> None:
        async with Stage(tmp_path, python=script, devices=lambda: [Device(0), Device(1)]) as stage:
            first = stage.supervisor.launch(launch("llama-1", service="llama", gpus=2))
            assert (first.state, first.gpus) == ("starting", (0, 1))
            second = stage.supervisor.launch(launch("iris-1", gpus=1))
            assert second.state == "waiting"
            assert second.reason == "waiting for a GPU held by default/llama (2 of 2 in use)"
            stage.supervisor.drain("llama-1", 5)
            started = await stage.until("starting", "iris-1")
            assert (started.gpus, started.reason) == ((0,), "")
            await eventually_async(lambda: Path(started.log).exists() and list(lines(started.log)) == ["0"])

    asyncio.run(play())


def test_who_waits_can_be_told_to_stop(tmp_path: Path) -> None:
    async def play() -> None:
        async with Stage(tmp_path, devices=list) as stage:
            waiting = stage.supervisor.launch(launch(gpus=1))
            assert waiting.reason == "needs 1 GPU, but this machine has none"
            stage.supervisor.drain(waiting.id, 5)
            assert (await stage.until("exited")).crashed is False
            assert not stage.supervisor.replicas()

    asyncio.run(play())
