"""Replicas whose models others can change: a private copy, no credentials of the platform, no code or a sandbox."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import json as msgspec_json
from tests.eventually import eventually_async
from tests.platform.targets.local.supervisor.supervisor_harness import IRIS, Stage, alive, launch, lines

from pilotlight.contract import ENV_CACHE_DIR
from pilotlight.errors import PlatformError
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.supervisor import container_command
from pilotlight.targets.local.supervisor.forkserver_client import PilotLights
from pilotlight.targets.local.supervisor.isolation import isolated_process, model_copy, sandbox
from pilotlight.targets.local.supervisor.isolation.cgroups import Limits
from pilotlight.targets.local.supervisor.replica_record import Replica

MODEL, FLOWERS = "INFERENCE_MODEL_PATH", IRIS["INFERENCE_MODEL_PATH"]
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "a", "GOOGLE_APPLICATION_CREDENTIALS": "/key.json", "AZURE_CLIENT_ID": "c",
    "HF_TOKEN": "of the operator", "https_proxy": "http://user:password@proxy",
}  # fmt: skip
# Reports what it can read, then answers. HOME is replaced by the platform's.
CODE = """
import os, sys
INPUTS, OUTPUTS = {"x": ("FP32", [-1, 4])}, {"y": ("FP32", [-1, 4])}

def attempt(act, path):
    try:
        return act(path)
    except OSError as error:
        return type(error).__name__

seen = {path: attempt(os.listdir, path) for path in ("HOME", "HOME/run", "FOLDER")}
seen |= {"uid": os.getuid(), "pid": os.getpid(), "write": attempt(lambda path: open(path, "w"), __file__)}
print("SEEN", __import__("json").dumps({**seen, "env": dict(os.environ)}), file=sys.stderr, flush=True)

class Model:
    def execute(self, inputs):
        return {"y": inputs["x"]}
"""
# Another process starts an isolated replica, prints its record, and dies.
PREDECESSOR = """
import asyncio, os, signal, sys
from pathlib import Path
from msgspec import json
from tests.platform.targets.local.supervisor.supervisor_harness import Stage, launch

async def play():
    stage = Stage(Path(sys.argv[1]))
    await stage.__aenter__()
    record = await stage.start(launch(isolation=sys.argv[2]))
    sys.stdout.buffer.write(json.encode(record))
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(play())
"""
ROOT = Path(__file__).resolve().parents[6]
needs_sandbox = pytest.mark.skipif(not sandbox.detect().kind, reason="this machine has no sandbox")
ISOLATIONS = ["data", pytest.param("sandbox", marks=needs_sandbox)]


class Unused(PilotLights):
    def fork(self, *_: Any) -> None:
        raise AssertionError("isolated, and forked from a pilot light")


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    Limits(Home(tmp_path / "home")).sweep(())


def leftovers(home: Home, record: Replica) -> list[str]:
    """What is left of a replica: its folders, and its control groups."""
    folders = [each for each in (home.copies / record.id, home.sockets / record.id) if each.exists()]
    return [str(each) for each in (*folders, *Path("/sys/fs/cgroup").rglob(record.id))]


def environ(pid: int) -> dict[str, str]:
    return dict(line.split("=", 1) for line in Path(f"/proc/{pid}/environ").read_text().split("\0") if line)


def code_model(folder: Path, home: Home) -> Path:
    model = folder / "evil"
    model.mkdir()
    (model / "model.py").write_text(CODE.replace("HOME", str(home.root)).replace("FOLDER", str(folder)))
    return model


def test_models_of_stores_are_cached_for_one_namespace(folder: Path) -> None:
    home = Home(folder / "home").create()

    def cache(namespace: str) -> str:
        order = launch(env={MODEL: "s3://b/m"}, isolation="data")
        order = replace(order, revision=replace(order.revision, namespace=namespace))
        environ = {ENV_CACHE_DIR: str(home.cache)}
        return isolated_process.prepare(order, environ, home, Limits(home), "python")[1][ENV_CACHE_DIR]

    assert cache("evil") == cache("evil") != cache("acme")
    assert str(home.cache) not in (cache("evil"), cache("acme")), "that of the operator's models"


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_it_serves_a_copy_of_its_model_and_leaves_nothing(folder: Path, isolation: str) -> None:
    model = folder / "model.onnx"
    shutil.copy(FLOWERS, model)

    async def play() -> None:
        async with Stage(folder, pilot=Unused(Home(folder / "home"))) as stage:
            order = launch(env={**IRIS, MODEL: str(model), "HF_TOKEN": "of the org"}, isolation=isolation)
            first = stage.supervisor.launch(order)
            assert (first.state, first.reason) == ("pending", "copying the model")
            ready = await stage.until("ready")
            copy = stage.home.copies / ready.id / "model.onnx"
            assert copy.read_bytes() == model.read_bytes()
            assert not os.path.samefile(copy, model)
            seen = environ(ready.pid)
            assert seen["HF_TOKEN"] == "of the org"
            assert seen[MODEL] == str(copy if isolation == "data" else model)
            assert seen["HOME"] == (str(stage.home.cache) if isolation == "data" else "/cache")
            assert not set(CREDENTIALS) & set(seen) - {"HF_TOKEN", *(["https_proxy"] if isolation == "data" else [])}
            stage.supervisor.drain(ready.id, 30)
            ended = await stage.until("exited")
            assert (ended.exit_code, ended.crashed) == (0, False), lines(ended.log)
            assert leftovers(stage.home, ended) == []

    asyncio.run(play())


def test_code_of_a_model_that_is_data_is_not_run(folder: Path) -> None:
    async def play() -> None:
        async with Stage(folder) as stage:
            model = code_model(folder, stage.home)
            stage.supervisor.launch(launch(args=("--model-path", str(model), "--model-code"), isolation="data"))
            await eventually_async(lambda: any(told.state == "exited" for told in stage.told))
            ended = stage.told[-1]
            assert "which can run code" in ended.reason
            assert not [line for line in lines(ended.log) if "SEEN" in line]
            assert leftovers(stage.home, ended) == []

    asyncio.run(play())


@needs_sandbox
def test_code_in_a_sandbox_sees_neither_the_home_nor_other_folders_nor_credentials(folder: Path) -> None:
    async def play() -> None:
        async with Stage(folder) as stage:
            model = code_model(folder, stage.home)
            ready = await stage.start(launch(env={MODEL: str(model)}, isolation="sandbox"))
            await eventually_async(lambda: "SEEN" in Path(ready.log).read_text())
            (line,) = [line for line in lines(ready.log) if "SEEN" in line]
            seen = json.loads(line[line.index("SEEN {") + 5 :])
            assert (seen[str(stage.home.root)], seen[str(stage.home.run)]) == ("FileNotFoundError",) * 2
            assert seen[str(folder)] == ["evil"]  # the path of its model
            assert (seen["write"], seen["pid"]) == ("OSError", 1)
            assert seen["uid"] == (stage.home.sockets / ready.id).stat().st_uid
            assert (seen["uid"] == os.geteuid()) == (os.geteuid() != 0)
            assert not set(CREDENTIALS) & set(seen["env"])
            assert (seen["env"]["HOME"], seen["env"]["INFERENCE_HOST"]) == ("/cache", "unix:/cache")
            stage.supervisor.drain(ready.id, 0.0)
            ended = await stage.until("exited")
            assert leftovers(stage.home, ended) == []

    asyncio.run(play())


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_the_next_supervisor_goes_on_with_it(folder: Path, isolation: str) -> None:
    call = [sys.executable, "-c", PREDECESSOR, str(folder), isolation]
    done = subprocess.run(call, capture_output=True, cwd=ROOT)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    record = msgspec_json.decode(done.stdout, type=Replica)

    async def play() -> None:
        async with Stage(folder) as stage:
            of_another = stage.home.copies / "ended-with-its-supervisor"
            of_another.mkdir()
            stage.supervisor.adopt([record])
            await eventually_async(lambda: not of_another.exists())
            assert alive(record.pid)
            assert (stage.home.copies / record.id / "model.onnx").exists()
            stage.supervisor.read_status(record.id)
            stage.supervisor.drain(record.id, 30)
            ended = await stage.until("exited")
            assert (ended.exit_code, ended.crashed) == (0, False)
            assert leftovers(stage.home, ended) == []

    asyncio.run(play())


def test_one_whose_copy_was_being_made_is_started_anew(folder: Path) -> None:
    async def play() -> None:
        async with Stage(folder) as stage:
            copied = stage.home.copies / "iris-1"
            copied.mkdir(parents=True)
            checks = container_command.checks(launch("iris-1"), stage.home)
            record = Replica("iris-1", "default", "iris", "iris-predictor", "iris-1", checks, state="pending")
            stage.supervisor.adopt([record])
            (ended,) = stage.told
            assert ended.reason == "the control process exited before this started"
            assert not ended.crashed
            await eventually_async(lambda: not copied.exists())

    asyncio.run(play())


def test_a_stop_while_the_model_is_copied_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copying, go = threading.Event(), threading.Event()

    def slow(model: Path, target: Path, *, sandboxed: bool) -> Path:
        copying.set()
        go.wait()
        return model_copy.copy_model(model, target, sandboxed=sandboxed)

    monkeypatch.setattr(isolated_process, "copy_model", slow)

    async def play() -> None:
        async with Stage(folder) as stage:
            record = stage.supervisor.launch(launch(isolation="data"))
            await eventually_async(copying.is_set)  # the event loop runs meanwhile
            stage.supervisor.drain(record.id, 30)
            go.set()
            ended = await stage.until("exited")
            assert (ended.reason, ended.pid, ended.crashed) == ("stopped before it started", 0, False)
            assert leftovers(stage.home, ended) == []

    asyncio.run(play())


def test_a_model_that_is_a_link_is_not_started(folder: Path) -> None:
    (folder / "model.onnx").symlink_to(FLOWERS)

    async def play() -> None:
        async with Stage(folder) as stage:
            record = stage.supervisor.launch(launch(env={MODEL: str(folder / "model.onnx")}, isolation="data"))
            await eventually_async(lambda: any(told.state == "exited" for told in stage.told))
            assert "cannot be copied for the start" in stage.told[-1].reason
            assert leftovers(stage.home, record) == []

    asyncio.run(play())


@pytest.mark.parametrize(
    ("env", "args"),
    [({}, ()), ({MODEL: "iris"}, ()), (IRIS, ("--model-path", "/a", "--model-dir=/b"))],
    ids=["none", "relative", "two"],
)
def test_it_needs_one_model_by_an_absolute_path_or_a_uri(env: dict[str, str], args: tuple[str, ...]) -> None:
    container = launch(env=env, args=args, isolation="data").revision.container
    with pytest.raises(PlatformError, match="isolation = data, which needs one model"):
        isolated_process.model_of(container)
    assert isolated_process.model_of(launch(env={MODEL: "s3://m/x"}).revision.container) == "s3://m/x"
