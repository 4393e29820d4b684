"""GPUs go to replicas as a whole or by memory; who finds none waits, and says for whom."""

import asyncio
from pathlib import Path

import pytest
from tests.eventually import eventually_async
from tests.platform.targets.local.runs import replica
from tests.platform.targets.local.supervisor.supervisor_harness import Stage, launch, lines, program

from pilotlight.errors import PlatformError
from pilotlight.targets.local.scaling.gpu_admission import DEFAULT_RULES
from pilotlight.targets.local.supervisor.gpus import Device, GpuFacts, GpuQueue, Hold


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


@pytest.mark.parametrize(
    ("processes", "used", "free"),
    [({7: 15, 9: 5}, 20, 80), ({7: 4, 9: 5}, 19, 75), ({9: 20}, 20, 70), ({}, 20, 80)],
    ids=[
        "the holder uses more than it should",
        "the holder has not loaded all yet",
        "the holder has loaded nothing yet",
        "NVML shows no processes",
    ],
)
def test_what_other_programs_use_and_what_holders_may_use_is_not_given_away(
    processes: dict[int, int], used: int, free: int
) -> None:
    """A GPU of 100 bytes with a holder of 10; process 7 is its own, 9 is of another program."""
    device = Device(0, used, 100, processes)
    records = {name: replica(own=name, state=state) for name, state in (("a", "ready"), ("b", "waiting"))}  # type: ignore[arg-type]

    def admitted(memory: int) -> bool:
        queue = GpuQueue(
            lambda: [device],
            lambda record: GpuFacts(ready_at=0.0),
            lambda: 0.0,
            lambda pid: {7: "a"}.get(pid, ""),
            DEFAULT_RULES,
        )
        queue.held["a"] = Hold((0,), 10)
        queue.enqueue("b", 1, memory)
        return "b" in queue.admit(records).admitted

    assert admitted(free)
    assert not admitted(free + 1)


def test_a_model_that_fits_no_gpu_of_this_machine_is_refused(tmp_path: Path) -> None:
    async def play() -> None:
        async with Stage(tmp_path, devices=lambda: [Device(0, memory=24 << 30)]) as stage:
            stage.supervisor.check(launch(gpus=1, gpu_memory=24 << 30).revision)
            with pytest.raises(PlatformError, match=r"iris: needs 25Gi of GPU memory, but the largest GPU .* has 24Gi"):
                stage.supervisor.check(launch(gpus=1, gpu_memory=25 << 30).revision)

    asyncio.run(play())


def test_a_parked_replica_that_has_not_released_its_gpu_yet_is_on_its_way_out() -> None:
    """Another holder would leave in vain between the end of its parking and its release."""
    records = {
        "parked": replica(own="parked", state="parked"), "idle": replica(own="idle"),
        "waits": replica(own="waits", state="waiting"),
    }  # fmt: skip
    facts = {"idle": GpuFacts(evictable=True, ready_at=0.0), "waits": GpuFacts(claim="busy")}
    queue = GpuQueue(
        lambda: [Device(0, 0, 100)],
        lambda record: facts.get(record.id, GpuFacts()),
        lambda: 100.0,
        lambda pid: "",
        DEFAULT_RULES,
    )
    queue.held |= {"parked": Hold((0,), 50), "idle": Hold((0,), 50)}
    queue.enqueue("waits", 1, 50)
    assert queue.admit(records).evictions == []
    queue.release("parked")
    assert queue.admit(records).admitted == {"waits": (0,)}
