"""A replica from its start to its end: real processes, watched by the kernel's own means."""

import asyncio
import gc
import os
import resource
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.eventually import eventually_async
from tests.onnx_models import write_python
from tests.platform.targets.local.supervisor.supervisor_harness import IRIS, READY, Stage, alive, launch, lines, program
from tests.ports import free_port, listens_on_tcp
from tests.serving import ANSWER_S, json_tensor, read_answer, rendered

from pilotlight.errors import NotFound, PlatformError
from pilotlight.targets.local.home_directory import ENV_HOME, Home
from pilotlight.targets.local.manifests.service_spec_types import Probe
from pilotlight.targets.local.process_identity import identify
from pilotlight.targets.local.supervisor.forkserver_client import PilotLights
from pilotlight.targets.local.supervisor.process_inspection import replica_processes
from pilotlight.targets.local.supervisor.replica_record import Replica
from pilotlight.wire import unix_socket
from pilotlight.wire.http_client import request

STARTUP = Probe(READY.path, 8080, period_s=1.0, failure_threshold=60)
SLOW = """
import time
INPUTS = {"x": ("FP32", [1])}
OUTPUTS = {"y": ("FP32", [1])}

def predict(x):
    time.sleep(1.0)
    return {"y": x}
"""


def test_a_predictor_starts_answers_and_drains(tmp_path: Path) -> None:
    async def play() -> None:
        async with Stage(tmp_path) as stage:
            order = launch()
            before = stage.supervisor.launch(order)
            assert before.state == "starting"
            ready = await stage.until("ready")
            identity = identify(ready.pid)
            assert identity is not None
            assert (ready.boot_id, ready.start_ticks) == identity[1:]
            assert ready.port != ready.grpc_port
            await eventually_async(lambda: "total" in stage.supervisor.replicas()[0].status.get("phases", {}))
            assert stage.supervisor.usage(ready.id).resident_bytes > 10 << 20
            assert stage.supervisor.usage(ready.id).cpu_seconds > 0.05
            stage.supervisor.drain(ready.id, 30)
            ended = await stage.until("exited")
            assert (ended.exit_code, ended.signal, ended.crashed) == (0, None, False)
            assert stage.states() == ["starting", "ready", "draining", "exited"]
            assert not stage.supervisor.replicas()
            assert any('"event":"stopped"' in line for line in lines(ready.log))
            assert not list(stage.home.run.glob("*.exit"))

    asyncio.run(play())


def test_a_slow_request_in_flight_is_answered_before_the_end(tmp_path: Path) -> None:
    write_python(tmp_path / "models", "slow", SLOW)
    env = {"INFERENCE_MODEL_REPOSITORY": str(tmp_path / "models")}

    async def play() -> None:
        async with Stage(tmp_path) as stage:
            ready = await stage.start(launch(env=env))
            body = {"inputs": [json_tensor("x", "FP32", [1], [7.0])]}
            asking = asyncio.to_thread(ask_slowly, ready, body, sent := asyncio.Event(), asyncio.get_running_loop())
            task = asyncio.ensure_future(asking)
            await sent.wait()
            for _ in range(2):  # a second SIGTERM would tell the predictor to hurry
                stage.supervisor.drain(ready.id, 30)
            assert await task == 200
            assert (await stage.until("exited")).exit_code == 0

    asyncio.run(play())


def ask_slowly(replica: Replica, body: object, sent: asyncio.Event, loop: asyncio.AbstractEventLoop) -> int:
    with unix_socket.connect(replica.host, replica.port) as connection:
        connection.settimeout(ANSWER_S)
        connection.sendall(rendered("POST", "/v2/models/slow/infer", body, None, "127.0.0.1"))
        loop.call_soon_threadsafe(sent.set)
        return read_answer(connection).status


def test_a_replica_that_will_not_end_is_killed_after_its_grace(tmp_path: Path) -> None:
    script = program(tmp_path, "trap '' TERM; echo deaf; while :; do sleep 0.05; done")

    async def play() -> None:
        async with Stage(tmp_path, python=script) as stage:
            replica = stage.supervisor.launch(launch())
            await eventually_async(lambda: Path(replica.log).read_text() == "deaf\n")
            stage.supervisor.drain(replica.id, 0.3)
            ended = await stage.until("exited")
            assert (ended.signal, ended.crashed) == (9, False)

    asyncio.run(play())


def test_what_a_replica_leaves_running_ends_with_it(tmp_path: Path) -> None:
    script = program(tmp_path, "sleep 600 & echo $!; exit 3")

    async def play() -> None:
        async with Stage(tmp_path, python=script) as stage:
            stage.supervisor.launch(launch())
            ended = await stage.until("exited")
            left = int(lines(ended.log)[0])
            await eventually_async(lambda: not alive(left))

    asyncio.run(play())


@pytest.mark.parametrize(
    ("script", "reason", "number"),
    [
        ("kill -SEGV $$", "ended by signal 11 (segmentation fault)", 11),
        ("exit 139", "ended by signal 11 (segmentation fault)", 11),
        ("kill -KILL $$", "ended by signal 9 (killed)", 9),
        (
            """echo '{"level":"ERROR","message":"no such model"}'; echo bye; exit 4""",
            "exit code 4: no such model",
            None,
        ),
        ("echo Traceback; echo ValueError: x; exit 1", "exit code 1: ValueError: x", None),
        ("exit 0", "exited unexpectedly", None),
    ],
)
def test_the_reason_of_a_crash_is_told(tmp_path: Path, script: str, reason: str, number: int | None) -> None:
    async def play() -> None:
        async with Stage(tmp_path, python=program(tmp_path, script)) as stage:
            stage.supervisor.launch(launch())
            ended = await stage.until("exited")
            assert (ended.reason, ended.signal, ended.crashed) == (reason, number, True)

    asyncio.run(play())


def test_a_replica_killed_from_outside_is_reported_though_nobody_probes_it(tmp_path: Path) -> None:
    seldom = Probe(READY.path, 8080, period_s=3600.0)

    async def play() -> None:
        async with Stage(tmp_path) as stage:
            ready = await stage.start(launch(readiness=seldom))
            os.kill(ready.pid, signal.SIGKILL)
            ended = await stage.until("exited")
            assert ended.reason == "ended by signal 9 (killed)"
            with pytest.raises(NotFound):
                stage.supervisor.drain(ready.id, 1)

    asyncio.run(play())


def test_a_model_that_cannot_be_loaded_ends_the_start_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"no model")
    env = {"INFERENCE_MODEL_PATH": str(tmp_path / "model.onnx"), "INFERENCE_MODEL_NAME": "broken"}

    async def play() -> None:
        async with Stage(tmp_path) as stage:
            stage.supervisor.launch(launch(env=env))
            ended = await stage.until("exited")
            assert ended.reason.startswith("model 'broken'")
            assert ended.crashed
            assert stage.states() == ["starting", "draining", "exited"]

    asyncio.run(play())


def test_a_microservice_stays_and_says_why_its_model_cannot_be_loaded(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"no model")
    env = {"INFERENCE_MODEL_PATH": str(tmp_path / "model.onnx"), "INFERENCE_MICROSERVICE": "true"}

    async def play() -> None:
        async with Stage(tmp_path) as stage:
            ready = await stage.start(launch(env=env, readiness=None, host_port=(port := free_port())))
            assert (ready.host, ready.port) == ("127.0.0.1", port)

            async def failed() -> bool:
                return (await request(port, "/status", ANSWER_S)).json().get("state") == "failed"

            async with asyncio.timeout(ANSWER_S):
                while not await failed():
                    await asyncio.sleep(0.01)
            assert stage.states() == ["starting", "ready"]

    asyncio.run(play())


def test_a_start_beyond_its_budget_is_ended(tmp_path: Path) -> None:
    async def play() -> None:
        async with Stage(tmp_path, python=program(tmp_path, "exec sleep 600")) as stage:
            stage.supervisor.launch(launch("late", deadline_s=0.2))
            assert (await stage.until("exited", "late")).reason == "not ready within the progress deadline of 0.2 s"
            startup = Probe("/v2/health/ready", 8080, period_s=0.1, failure_threshold=2)
            stage.supervisor.launch(launch("later", startup=startup))
            assert (await stage.until("exited", "later")).reason == "startup probe failed 2 times in 0.2 s"

    asyncio.run(play())


def test_a_hung_replica_becomes_unready_and_is_then_killed(tmp_path: Path) -> None:
    quick = {"period_s": 0.1, "timeout_s": 0.3, "failure_threshold": 2}
    live, ready_probe = (
        Probe("/v2/health/live", 8080, **(quick | {"failure_threshold": 6})),
        Probe(READY.path, 8080, **quick),
    )

    async def play() -> None:
        async with Stage(tmp_path) as stage:
            ready = await stage.start(launch(liveness=live, readiness=ready_probe, startup=STARTUP))
            os.kill(ready.pid, signal.SIGSTOP)
            unready = await stage.until("unready")
            assert unready.reason == "readiness probe failed 2 times"
            ended = await stage.until("exited")
            assert (ended.reason, ended.crashed) == ("liveness probe failed 6 times", True)

    asyncio.run(play())


def test_a_replica_that_answers_again_is_ready_again(tmp_path: Path) -> None:
    readiness = Probe(READY.path, 8080, period_s=0.1, timeout_s=0.3, failure_threshold=2)

    async def play() -> None:
        async with Stage(tmp_path) as stage:
            ready = await stage.start(launch(readiness=readiness))
            os.kill(ready.pid, signal.SIGSTOP)
            await stage.until("unready")
            os.kill(ready.pid, signal.SIGCONT)
            await eventually_async(lambda: len(stage.states()) >= 4)
            assert stage.states()[:4] == ["starting", "ready", "unready", "ready"]  # a busy machine may go on with it

    asyncio.run(play())


def test_other_users_cannot_enter_the_folder_of_the_sockets(tmp_path: Path) -> None:
    async def play() -> None:
        async with Stage(tmp_path / ("long" * 30)) as stage:
            ready = await stage.start(launch())
            folder = stage.home.sockets / ready.id
            assert sorted(each.name for each in folder.iterdir()) == ["8080", "8081", "8082"]
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            assert not listens_on_tcp(ready.pid)
            stage.supervisor.drain(ready.id, 30)
            await stage.until("exited")
            assert not folder.exists()

    asyncio.run(play())


def test_only_what_a_process_needs_reaches_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    monkeypatch.setenv("SECRET_OF_MINE", "x")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:3128")

    async def play() -> None:
        async with Stage(tmp_path, python=program(tmp_path, "env; pwd; exec sleep 600")) as stage:
            replica = stage.supervisor.launch(launch(env={**IRIS, "INFERENCE_DRAIN_DELAY": "10"}))
            await eventually_async(lambda: str(stage.home.root) in lines(replica.log))
            seen = dict(line.split("=", 1) for line in lines(replica.log) if "=" in line)
            assert (seen["INFERENCE_HTTP_PORT"], replica.port) == ("8080", 8080)
            assert seen["INFERENCE_DRAIN_DELAY"] == "0"
            assert seen["INFERENCE_HOST"] == replica.host == f"unix:{stage.home.sockets / replica.id}"
            assert seen["PILOTLIGHT_CACHE_DIR"] == str(stage.home.cache)
            assert seen["K_REVISION"] == seen["PILOTLIGHT_REVISION"] == replica.revision
            assert seen["PILOTLIGHT_GATEWAY_URL"] == "http://127.0.0.1:8090"
            assert seen["CUDA_VISIBLE_DEVICES"] == ""
            assert seen[ENV_HOME] == str(stage.home.root)
            assert (seen["AWS_REGION"], seen["https_proxy"]) == ("eu-central-1", "http://127.0.0.1:3128")
            assert "SECRET_OF_MINE" not in seen

    asyncio.run(play())


def test_the_value_of_a_secret_reaches_the_process_and_nothing_that_is_told(tmp_path: Path) -> None:
    script = 'printenv HF_TOKEN > "$0.seen"; echo "ValueError: no access with $HF_TOKEN" >&2; exit 1'

    async def play() -> None:
        async with Stage(tmp_path, python=program(tmp_path, script)) as stage:
            order = launch(secret_env=(("HF_TOKEN", "iris", "token"),))
            stage.supervisor.secrets["default", "iris"] = {"token": "hf_12345678"}
            stage.supervisor.launch(order)
            ended = await stage.until("exited")
            assert (tmp_path / "program.seen").read_text() == "hf_12345678\n"
            assert ended.reason.endswith("ValueError: no access with <token>")
            assert "hf_12345678" not in f"{stage.told}{replace(order, secrets={'token': 'hf_12345678'})}"

    asyncio.run(play())


def test_a_replica_whose_secret_nobody_has_set_says_so(tmp_path: Path) -> None:
    async def play() -> None:
        async with Stage(tmp_path) as stage:
            stage.supervisor.launch(launch(secret_env=(("HF_TOKEN", "iris", "token"),)))
            ended = await stage.until("exited")
            assert ended.reason == (
                "could not be started: HF_TOKEN of iris: its value was set at the start, before this control process "
                "started; run platformctl microservice start again"
            )

    asyncio.run(play())


@pytest.mark.parametrize(
    ("container", "named"),
    [
        ({"image": "nvcr.io/nvidia/tritonserver:25.03"}, "image = nvcr.io/nvidia/tritonserver:25.03"),
        ({"image": "evil/pilotlight/predictor-not:1"}, "image"),
        ({"command": ("bash", "-c", "true")}, "command = bash -c true"),
    ],
)
def test_what_is_not_ours_is_refused_with_what_to_do_instead(
    tmp_path: Path, container: dict[str, str], named: str
) -> None:
    async def play() -> None:
        async with Stage(tmp_path) as stage:
            with pytest.raises(PlatformError, match=named) as raised:
                stage.supervisor.check(launch(**container).revision)
            assert "platformctl render" in raised.value.hint

    asyncio.run(play())


@pytest.mark.parametrize(
    "image", ["registry.example.com:5000/team/pilotlight/predictor@sha256:00", "pilotlight/predictor"]
)
def test_our_image_is_known_behind_any_registry(tmp_path: Path, image: str) -> None:
    async def play() -> None:
        async with Stage(tmp_path, python=program(tmp_path, "exit 3")) as stage:
            stage.supervisor.launch(launch(image=image))
            assert (await stage.until("exited")).exit_code == 3

    asyncio.run(play())


def test_closing_ends_all_or_none(tmp_path: Path) -> None:
    async def play() -> None:
        stage = Stage(tmp_path, python=program(tmp_path, "exec sleep 600"))
        async with stage:
            stage.supervisor.launch(launch("a"))
            await eventually_async(lambda: stage.supervisor.replicas()[0].pid > 0)
            pid = stage.supervisor.replicas()[0].pid
            await stage.supervisor.close(leave_running=True)
            assert alive(pid)
            await eventually_async(lambda: {name for _, name in replica_processes(stage.home)} == {"a"})

    asyncio.run(play())


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """This process can open so many files more, and none that was forgotten is closed meanwhile."""
    gc.collect()
    spare = [os.dup(0) for _ in range(count + 1)]
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    for descriptor in spare:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(spare), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("pilot", [False, True])
@pytest.mark.parametrize("left", range(6))
def test_a_start_that_finds_no_descriptor_ends_with_its_reason(tmp_path: Path, left: int, pilot: bool) -> None:
    async def play() -> None:
        home = Home(tmp_path / "home").create()
        lights = PilotLights(home, start_delay_s=60.0) if pilot else None
        async with Stage(tmp_path, python=program(tmp_path, "exec sleep 60"), pilot=lights) as stage:
            with descriptors_left(left):
                begun = stage.supervisor.launch(launch())
                assert begun.state == "starting"
                await eventually_async(lambda: bool(stage.told))
            last = stage.told[-1]
            assert last.state == "starting" or last.reason.startswith("could not be started: ")
            assert last.crashed or left > 2, "the ports alone need three"
            stage.supervisor.launch(launch("iris-predictor-1f3a9c07-later"))
            await eventually_async(lambda: any(told.pid for told in stage.told))

    asyncio.run(play())
