"""Replicas of engines that park: by the engine's own sleep, else by the driver. Engines and libcuda are stand-ins."""

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.cuda import stand_in
from tests.engines.installed import install
from tests.eventually import eventually_async
from tests.platform.targets.local.supervisor.supervisor_harness import Stage, alive, launch

from pilotlight.targets.local.control_process_launcher import token
from pilotlight.targets.local.manifests.service_spec_types import Probe
from pilotlight.targets.local.supervisor.gpus import Device
from pilotlight.targets.local.supervisor.process_inspection import connections_to
from pilotlight.targets.local.supervisor.replica_record import Launch, Replica
from pilotlight.wire.http_client import connect, exchange, request

SIZE, CONTEXT, MEMORY = 1000, 100, 1500
NOT_SUPPORTED = 801
SLEEPS = ("--enable-sleep-mode",)
GPU = Device(0, memory=MEMORY)
ROOT = Path(__file__).resolve().parents[6]
MODEL = f"""
from tests.cuda.stand_in import SECRET, GpuMemory

INPUTS = {{"x": ("FP32", [1])}}
OUTPUTS = {{"y": ("FP32", [1])}}


class Model:
    def initialize(self, args):
        self.memory = GpuMemory({SIZE})

    def execute(self, inputs):
        assert self.memory.read() == SECRET
        return {{"y": inputs["x"]}}
"""


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "gpu"
    programs = install(tmp_path / "environment", "vllm", "sglang")
    for name, value in {**stand_in.variables(folder, MEMORY), "PILOTLIGHT_ENGINE_PATH": programs}.items():
        monkeypatch.setenv(name, value)
    (folder / "context").write_text(str(CONTEXT))
    return folder


def engine(folder: Path, service: str = "one", args: Sequence[str] = (), gpus: int = 1, **more: object) -> Launch:
    (folder / "model").mkdir(exist_ok=True)
    options = {"image": "vllm/vllm-openai:v1", "args": (str(folder / "model"), *args), "gpus": gpus, **more}
    gpu = stand_in.variables(folder / "gpu", MEMORY) if gpus else {}
    env = {"VLLM_SERVER_DEV_MODE": "1", stand_in.ENV_SIZE: str(SIZE), **gpu}
    return launch(f"{service}-1", env, service, park=True, readiness=Probe("/health", 8080), **options)


def sglang(folder: Path) -> Launch:
    flags = ("--enable-memory-saver", "--enable-weights-cpu-backup")
    return engine(folder, image="lmsysorg/sglang", command=("python", "-m", "sglang.launch_server"),
                  args=flags)  # fmt: skip


def used(gpu: Path) -> int:
    return sum(int(file.read_text()) for file in gpu.glob("[0-9]*") if alive(int(file.name)))


def last(stage: Stage, replica: str = "one-1") -> Replica:
    return next(each for each in reversed(stage.told) if each.id == replica)


async def reach(stage: Stage, state: str, replica: str = "one-1") -> Replica:
    await eventually_async(
        lambda: stage.told and last(stage, replica).state == state, lambda: f"{state}: {stage.told[-1:]}"
    )
    return last(stage, replica)


async def answer(replica: Replica) -> str:
    models = (await request(replica.port, "/v1/models", 5, host=replica.host)).json()
    body = json.dumps({"model": models["data"][0]["id"], "prompt": "a b"}).encode()
    reply = await request(replica.port, "/v1/completions", 5, host=replica.host, body=body)
    return str(reply.json()["choices"][0]["text"])


async def parked(stage: Stage, order: Launch) -> Replica:
    await stage.start(order)
    stage.supervisor.park(order.replica)
    return await reach(stage, "parked", order.replica)


Make = Callable[[Path], Launch]
MEANS: dict[str, tuple[Make, str, int]] = {
    "driver": (engine, "driver", 0),
    "vllm": (lambda folder: engine(folder, args=SLEEPS), "engine", CONTEXT),
    "sglang": (sglang, "engine", CONTEXT),
}


@pytest.mark.parametrize("means", MEANS)
def test_a_parked_engine_frees_the_gpu_and_answers_after_it_is_woken(tmp_path: Path, gpu: Path, means: str) -> None:
    make, method, left = MEANS[means]

    async def play() -> None:
        async with Stage(tmp_path, devices=lambda: [GPU]) as stage:
            there = await parked(stage, make(tmp_path))
            assert (there.parking.method, used(gpu), bool(there.known_answer)) == (method, left, True)
            assert there.checkpointed == (method == "driver")
            stage.supervisor.unpark("one-1")
            back = await reach(stage, "ready")
            assert "waking" in stage.states()
            assert (back.pid, used(gpu), back.checkpointed, back.wake_s > 0) == (there.pid, SIZE + CONTEXT, False, True)
            assert await answer(back) == "a b"

    asyncio.run(play())


def test_weights_that_host_memory_has_no_room_for_are_loaded_again(tmp_path: Path, gpu: Path) -> None:
    async def play() -> None:
        async with Stage(tmp_path, devices=lambda: [GPU], parked_percent=-1.0) as stage:
            there = await parked(stage, engine(tmp_path, args=SLEEPS))
            assert (there.discarded, there.parked_bytes) == (True, 0)
            stage.supervisor.unpark("one-1")
            assert await answer(await reach(stage, "ready")) == "a b"

    asyncio.run(play())


def test_what_the_driver_cannot_checkpoint_is_ended_with_the_name_of_its_error(tmp_path: Path, gpu: Path) -> None:
    async def play() -> None:
        async with Stage(tmp_path, devices=lambda: [GPU]) as stage:
            stand_in.fail(gpu, "Checkpoint", NOT_SUPPORTED)
            await stage.start(engine(tmp_path))
            stage.supervisor.park("one-1")
            ended = await reach(stage, "exited")
            assert ended.unparkable.endswith("CUDA_ERROR_NOT_SUPPORTED")
            assert (ended.parks_never, ended.crashed) == (True, False)

    asyncio.run(play())


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        ({"memory_limit": 1 << 30, "gpu_memory": 1 << 30}, "raise resources.limits.memory by as much"),
        ({"gpu_memory": 1 << 50}, "of GPU memory, and parked replicas may use "),
    ],
)
def test_one_that_host_memory_cannot_hold_is_ended_before_it_is_moved(
    tmp_path: Path, gpu: Path, limits: dict[str, int], problem: str
) -> None:
    async def play() -> None:
        async with Stage(tmp_path, devices=lambda: [Device(0, SIZE, 1 << 51)]) as stage:
            await stage.start(engine(tmp_path, **limits))
            stage.supervisor.park("one-1")
            assert problem in (await reach(stage, "exited")).unparkable

    asyncio.run(play())


def test_a_wake_that_changes_the_answer_ends_the_process(tmp_path: Path, gpu: Path) -> None:
    async def play() -> None:
        async with Stage(tmp_path, devices=lambda: [GPU]) as stage:
            await parked(stage, engine(tmp_path))
            (gpu / "corrupt").touch()
            stage.supervisor.unpark("one-1")
            ended = await reach(stage, "exited")
            assert ended.wake_failure == "its response to a known request is not the one from before it was parked"
            assert not ended.crashed
            assert "ready" not in stage.states()[stage.states().index("parked") :]

    asyncio.run(play())


def test_a_restore_that_fails_ends_the_process(tmp_path: Path, gpu: Path) -> None:
    async def play() -> None:
        async with Stage(tmp_path, devices=lambda: [GPU]) as stage:
            await parked(stage, engine(tmp_path))
            stand_in.fail(gpu, "Restore", 2)
            stage.supervisor.unpark("one-1")
            assert "CUDA_ERROR_OUT_OF_MEMORY" in (await reach(stage, "exited")).wake_failure

    asyncio.run(play())


def test_the_driver_takes_the_context_of_a_sleeping_engine_when_its_gpu_is_needed_whole(
    tmp_path: Path, gpu: Path
) -> None:
    async def play() -> None:
        async with Stage(tmp_path, devices=lambda: [GPU]) as stage:
            await parked(stage, engine(tmp_path, args=SLEEPS))
            assert used(gpu) == CONTEXT
            await stage.start(engine(tmp_path, "two", args=SLEEPS))
            await eventually_async(lambda: last(stage).checkpointed and used(gpu) == SIZE + CONTEXT)
            stage.supervisor.unpark("one-1")
            stage.supervisor.park("two-1")
            back = await reach(stage, "ready")
            assert (await answer(back), back.checkpointed) == ("a b", False)

    asyncio.run(play())


def test_a_context_that_the_driver_cannot_take_stays_and_says_why(tmp_path: Path, gpu: Path) -> None:
    async def play() -> None:
        async with Stage(tmp_path, devices=lambda: [GPU]) as stage:
            await parked(stage, engine(tmp_path, args=SLEEPS))
            stand_in.fail(gpu, "Checkpoint", NOT_SUPPORTED)
            await stage.start(engine(tmp_path, "two", gpus=1, args=SLEEPS, gpu_memory=0))
            await eventually_async(lambda: bool(last(stage).context_kept))
            assert (last(stage).state, last(stage).checkpointed) == ("parked", False)

    asyncio.run(play())


def test_the_driver_parks_a_model_of_ours_that_cannot_park_by_itself(tmp_path: Path, gpu: Path) -> None:
    model = tmp_path / "model.py"
    model.write_text(MODEL)
    example = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [3]}]})
    names = {"INFERENCE_MODEL_PATH": str(model), "INFERENCE_MODEL_NAME": "one", "INFERENCE_EXAMPLE": example}
    paths = {"PYTHONPATH": f"{ROOT}:{ROOT}/platform", "INFERENCE_PARK_MEMORY": "1MiB", "PILOTLIGHT_SERVICE": "one"}
    env = {**names, **paths, **stand_in.variables(gpu, MEMORY)}

    async def play() -> None:
        async with Stage(tmp_path, devices=lambda: [GPU]) as stage:
            token(stage.home)
            there = await parked(stage, launch("one-1", env, "one", gpus=1))
            assert (there.parking.method, used(gpu), bool(there.known_answer)) == ("driver", 0, True)
            stage.supervisor.unpark("one-1")
            back = await reach(stage, "ready")
            reply = await request(back.port, "/v2/models/one/infer", 5, host=back.host, body=example.encode())
            assert reply.json()["outputs"][0]["data"] == [3]

    asyncio.run(play())


@pytest.mark.parametrize("state", ["parking", "parked", "waking"])
def test_a_later_supervisor_finds_a_checkpointed_replica_and_wakes_it(tmp_path: Path, gpu: Path, state: str) -> None:
    async def play() -> None:
        async with Stage(tmp_path, devices=lambda: [GPU]) as stage:
            there = await parked(stage, engine(tmp_path))
            await stage.supervisor.close(leave_running=True)
            stage.told.clear()
            async with Stage(tmp_path, devices=lambda: [GPU]) as later:
                later.supervisor.adopt([replace(there, state=state)])
                if state == "parked":
                    later.supervisor.unpark("one-1")
                assert await answer(await reach(later, "ready")) == "a b"

    asyncio.run(play())


def test_a_parked_replica_is_ended_without_its_grace_period(tmp_path: Path, gpu: Path) -> None:
    async def play() -> None:
        async with Stage(tmp_path, devices=lambda: [GPU]) as stage:
            await parked(stage, engine(tmp_path))
            stage.supervisor.drain("one-1", 300)
            assert not (await reach(stage, "exited")).crashed

    asyncio.run(play())


def test_the_endpoints_of_a_sleeping_engine_are_on_a_socket_of_its_user(tmp_path: Path, gpu: Path) -> None:
    home = tmp_path / ("a" * 100)  # a socket's path has at most 107 bytes
    home.mkdir()

    async def play() -> None:
        async with Stage(home, devices=lambda: [GPU]) as stage:
            ready = await stage.start(engine(tmp_path, args=SLEEPS))
            assert (ready.host, ready.port) == (f"unix:{stage.home.sockets}/one-1", 8080)
            assert (stage.home.sockets / "one-1").stat().st_mode & 0o777 == 0o700

    asyncio.run(play())


def test_requests_in_flight_are_finished_before_a_replica_parks(tmp_path: Path, gpu: Path) -> None:
    async def play() -> None:
        async with Stage(tmp_path, devices=lambda: [GPU]) as stage:
            ready = await stage.start(engine(tmp_path, args=SLEEPS))
            with await connect(ready.host, ready.port) as connection:
                await eventually_async(lambda: connections_to(ready.port, ready.host) == 1)
                stage.supervisor.park("one-1")
                head = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
                assert (last(stage).state, (await exchange(connection, head)).status) == ("parking", 200)
            await reach(stage, "parked")

    asyncio.run(play())
