"""Replicas that park: real predictors told to, their GPUs lent to others meanwhile, and who has to go for memory."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.onnx_models import write_python
from tests.platform.targets.local.supervisor.supervisor_harness import Stage, launch

from pilotlight.targets.local.control_process_launcher import token
from pilotlight.targets.local.supervisor.gpus import Device, over_budget
from pilotlight.targets.local.supervisor.parking.self_parking import LINK_BYTES_PER_S, ParkResult, swap_seconds
from pilotlight.targets.local.supervisor.replica_record import Checks, Launch, Replica

PARKS = """
INPUTS = {"x": ("FP32", [1])}
OUTPUTS = {"y": ("FP32", [1])}


class Model:
    park_bytes = 1000

    def execute(self, inputs):
        return inputs["x"]
"""
METHODS = """
    def park(self):
        pass

    def wake(self):
        pass
"""


def order(folder: Path, replica: str, service: str, source: str = PARKS + METHODS, gpus: int = 1) -> Launch:
    model = folder / service / "model.py"
    model.parent.mkdir(exist_ok=True)
    model.write_text(source)
    env = {"INFERENCE_MODEL_PATH": str(model), "INFERENCE_MODEL_NAME": service, "INFERENCE_PARK_MEMORY": "1MiB"}
    return launch(replica, {**env, "PILOTLIGHT_SERVICE": service}, service, gpus=gpus)


def now(stage: Stage, replica: str) -> Replica:
    return next(found for found in stage.supervisor.replicas() if found.id == replica)


async def last(stage: Stage, replica: str, state: str) -> Replica:
    """Until that is what was told of it last."""
    async with asyncio.timeout(60):
        while not (told := [each for each in stage.told if each.id == replica]) or told[-1].state != state:
            await asyncio.sleep(0.01)
    return told[-1]


def test_a_parked_replica_lends_its_gpu_and_has_it_back_when_the_other_parks(tmp_path: Path) -> None:
    async def play() -> None:
        async with Stage(tmp_path, devices=lambda: [Device(0)]) as stage:
            token(stage.home)
            await stage.start(order(tmp_path, "one-1", "one"))
            waiting = stage.supervisor.launch(order(tmp_path, "two-1", "two"))
            assert (waiting.state, waiting.reason) == (
                "waiting", "waiting for a GPU held by default/one (1 of 1 in use)",
            )  # fmt: skip
            stage.supervisor.park("one-1")
            parked = await last(stage, "one-1", "parked")
            assert (parked.parked_bytes, parked.parked_at > 0, parked.gpus) == (1000, True, (0,))
            assert parked.swap_s == 1000 / LINK_BYTES_PER_S
            await last(stage, "two-1", "ready")

            stage.supervisor.unpark("one-1")
            assert now(stage, "one-1").reason == "parked, and waiting for its GPU held by default/two"
            stage.supervisor.park("two-1")
            back = await last(stage, "one-1", "ready")
            assert (back.reason, back.pid, now(stage, "two-1").state) == ("", parked.pid, "parked")
            assert not any(each.context_kept for each in stage.told)  # there is none that the driver could take

    asyncio.run(play())


def test_a_replica_whose_model_cannot_park_is_ended_and_says_why(tmp_path: Path) -> None:
    async def play() -> None:
        async with Stage(tmp_path) as stage:
            token(stage.home)
            await stage.start(order(tmp_path, "one-1", "one", PARKS, gpus=0))
            stage.supervisor.park("one-1")
            ended = await last(stage, "one-1", "exited")
            assert not ended.crashed
            assert ended.unparkable.startswith("'one' cannot be parked: the python backend cannot park it")

    asyncio.run(play())


def test_nobody_else_may_park_a_replica(tmp_path: Path) -> None:
    async def play() -> None:
        async with Stage(tmp_path) as stage:
            token(stage.home)
            await stage.start(order(tmp_path, "one-1", "one", gpus=0))
            stage.home.token.write_text("another")
            stage.supervisor.park("one-1")
            assert "requires the admin token" in (await last(stage, "one-1", "exited")).unparkable

    asyncio.run(play())


class Calling(list[Replica]):
    """What is told, and somebody who calls a replica back the moment that it is parked: a request has come."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self._stage = stage

    def append(self, told: Replica) -> None:
        super().append(told)
        if told.state == "parked":
            self._stage.supervisor.unpark(told.id)


def test_one_that_is_called_back_the_moment_it_is_parked_keeps_its_gpu(tmp_path: Path) -> None:
    async def play() -> None:
        stage = Stage(tmp_path, devices=lambda: [Device(0)])
        stage.told = Calling(stage)
        async with stage:
            token(stage.home)
            await stage.start(order(tmp_path, "one-1", "one"))
            other = stage.supervisor.launch(order(tmp_path, "two-1", "two"))
            stage.supervisor.park("one-1")
            await stage.until("parked", "one-1")
            await last(stage, "one-1", "ready")
            assert (other.state, now(stage, "two-1").state) == ("waiting", "waiting")

    asyncio.run(play())


def test_one_that_is_being_parked_can_be_called_back(tmp_path: Path) -> None:
    async def play() -> None:
        async with Stage(tmp_path, devices=lambda: [Device(0)]) as stage:
            token(stage.home)
            held = METHODS.replace("pass", "__import__('time').sleep(600)", 1)
            await stage.start(order(tmp_path, "one-1", "one", PARKS + held))
            stage.supervisor.park("one-1")
            assert now(stage, "one-1").state == "parking"
            stage.supervisor.unpark("one-1")
            assert now(stage, "one-1").state == "ready"

    asyncio.run(play())


def test_one_whose_parking_nobody_saw_the_end_of_is_told_again(tmp_path: Path) -> None:
    async def play() -> None:
        async with Stage(tmp_path, devices=lambda: [Device(0)]) as stage:
            token(stage.home)
            ready = await stage.start(order(tmp_path, "one-1", "one"))
            await stage.supervisor.close(leave_running=True)
            stage.told.clear()
            async with Stage(tmp_path, devices=lambda: [Device(0)]) as later:
                later.supervisor.adopt([replace(ready, state="parking")])
                assert (await last(later, "one-1", "parked")).parked_bytes == 1000

    asyncio.run(play())


def test_a_parked_one_moves_where_others_have_its_gpu_and_another_is_free(tmp_path: Path) -> None:
    async def play() -> None:
        devices = [Device(0)]
        async with Stage(tmp_path, devices=lambda: devices) as stage:
            token(stage.home)
            await stage.start(order(tmp_path, "one-1", "one"))
            stage.supervisor.park("one-1")
            await last(stage, "one-1", "parked")
            await stage.start(order(tmp_path, "two-1", "two"))
            stage.supervisor.unpark("one-1")
            assert stage.supervisor.admit().moves == []
            devices.append(Device(1))
            assert stage.supervisor.admit().moves == ["one-1"]
            stage.supervisor.drain("one-1", 5)
            assert not (await last(stage, "one-1", "exited")).crashed
            assert not stage.supervisor.gpus.waiting

    asyncio.run(play())


def test_who_has_waited_longest_for_a_gpu_gets_it(tmp_path: Path) -> None:
    async def play() -> None:
        async with Stage(tmp_path, devices=lambda: [Device(0)]) as stage:
            token(stage.home)
            await stage.start(order(tmp_path, "old-1", "old"))
            stage.supervisor.park("old-1")
            await last(stage, "old-1", "parked")
            await stage.start(order(tmp_path, "holds-1", "holds"))
            stage.supervisor.launch(order(tmp_path, "young-1", "young"))
            stage.supervisor.unpark("old-1")
            stage.supervisor.park("holds-1")
            await last(stage, "young-1", "starting")
            assert now(stage, "old-1").waits_for_gpu

    asyncio.run(play())


def test_models_that_do_not_serve_and_ensembles_keep_no_replica_from_parking(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    write_python(repository, "one", PARKS + METHODS)
    write_python(repository, "broken", "this is no Python\n")
    ensemble(repository)
    env = {"INFERENCE_MODEL_REPOSITORY": str(repository), "INFERENCE_PARK_MEMORY": "1MiB"}
    explicit = {"INFERENCE_MODEL_CONTROL_MODE": "explicit", "INFERENCE_LOAD_MODEL": "both"}

    async def play() -> None:
        async with Stage(tmp_path) as stage:
            token(stage.home)
            await stage.start(launch("one-1", {**env, **explicit, "PILOTLIGHT_SERVICE": "one"}, "one"))
            stage.supervisor.park("one-1")
            assert (await last(stage, "one-1", "parked")).parked_bytes == 1000

    asyncio.run(play())


def ensemble(repository: Path) -> None:
    (repository / "both/1").mkdir(parents=True)
    (repository / "both/config.pbtxt").write_text("""
platform: "ensemble"
input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]
ensemble_scheduling { step [ {
  model_name: "one" model_version: -1
  input_map { key: "x" value: "x" } output_map { key: "y" value: "y" }
} ] }
""")


def parked(name: str, size: int, at: float) -> Replica:
    checks = Checks(launch().revision.container.readiness)  # type: ignore[arg-type]
    return Replica(name, "default", name, name, name, checks, "parked", parked_at=at, parked_bytes=size)


@pytest.mark.parametrize(
    ("allowed", "leaving"), [(100, []), (90, ["old"]), (50, ["old", "middle"]), (0, ["old", "middle", "new"])]
)
def test_who_has_been_parked_longest_ends_when_all_keep_too_much(allowed: int, leaving: list[str]) -> None:
    found = [parked("new", 30, 9), parked("old", 40, 1), parked("nothing", 0, 0), parked("middle", 30, 5)]
    assert [replica.id for replica in over_budget(found, allowed)] == leaving


def test_a_swap_costs_as_much_as_the_last_one_and_at_first_what_its_bytes_take() -> None:
    assert swap_seconds(ParkResult(host_bytes=int(2 * LINK_BYTES_PER_S)), parking_s=9.0) == 2.0
    assert swap_seconds(ParkResult(host_bytes=1000, wake_s=0.2), parking_s=0.3) == 0.5


def test_one_that_serves_again_keeps_its_memory_at_the_cost_of_those_that_do_not() -> None:
    awake = replace(parked("awake", 60, 0), state="ready")
    assert [replica.id for replica in over_budget([awake, parked("old", 40, 1)], 80)] == ["old"]
    assert over_budget([awake], 50) == []
