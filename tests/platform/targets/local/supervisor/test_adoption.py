"""A control process dies; the next one goes on with what it left."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from msgspec import json as msgspec_json
from msgspec.structs import replace
from tests.eventually import eventually_async
from tests.platform.targets.local.supervisor.supervisor_harness import IRIS, WAIT_S, Stage, alive, launch, program

from pilotlight.targets.local.home_directory import ENV_HOME
from pilotlight.targets.local.supervisor import shim
from pilotlight.targets.local.supervisor.probes import STOPPING, predictor_state
from pilotlight.targets.local.supervisor.process_inspection import ENV_REPLICA, replica_processes
from pilotlight.targets.local.supervisor.replica_record import Replica

# Another process starts a replica, prints what it would have stored, and dies without a word.
PREDECESSOR = """
import asyncio, os, signal, sys
from pathlib import Path
sys.path[:0] = [sys.argv[1], sys.argv[2]]
from tests.platform.targets.local.supervisor.supervisor_harness import Stage, launch
from msgspec import json

async def play():
    stage = Stage(Path(sys.argv[3]), **({"python": sys.argv[4]} if len(sys.argv) > 4 else {}))
    await stage.__aenter__()
    stage.supervisor.launch(launch())
    while not stage.supervisor.replicas()[0].pid:
        await asyncio.sleep(0.01)
    if len(sys.argv) == 4:
        await stage.until("ready")
    sys.stdout.buffer.write(json.encode(stage.supervisor.replicas()[0]))
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(play())
"""

# This one starts and ends replicas without pause, and keeps what it is told of each in a file, as a store would.
BUSY = """
import asyncio, sys
from pathlib import Path
sys.path[:0] = [sys.argv[1], sys.argv[2]]
from tests.platform.targets.local.supervisor.supervisor_harness import Stage, launch
from msgspec import json

async def play():
    stage = Stage(Path(sys.argv[3]), python=sys.argv[4])
    await stage.__aenter__()
    store = Path(sys.argv[3]) / "store"
    store.mkdir(exist_ok=True)

    def keep(record):
        draft = store / f"{record.id}.new"
        draft.write_bytes(json.encode(record))
        draft.rename(store / f"{record.id}.json")

    stage.supervisor._on_change = keep
    for number in range(1000):
        keep(stage.supervisor.launch(launch(f"r{number}")))
        await asyncio.sleep(0.01)
        if number % 2:
            stage.supervisor.drain(f"r{number - 1}", 5)

print("begins", flush=True)
asyncio.run(play())
"""


def left_behind(folder: Path, *python: str) -> Replica:
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", PREDECESSOR, str(here), str(here.parents[1]), str(folder), *python], capture_output=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    return msgspec_json.decode(done.stdout, type=Replica)


def test_a_living_replica_is_watched_again_and_drained(tmp_path: Path) -> None:
    record = left_behind(tmp_path)

    async def play() -> None:
        async with Stage(tmp_path) as stage:
            stage.supervisor.adopt([record])
            assert [(found.id, found.state) for found in stage.supervisor.replicas()] == [(record.id, "ready")]
            assert alive(record.pid)
            await eventually_async(lambda: "phases" in stage.supervisor.replicas()[0].status)
            stage.supervisor.drain(record.id, 30)
            ended = await stage.until("exited")
            assert (ended.exit_code, ended.crashed) == (0, False)

    asyncio.run(play())


def test_one_that_was_to_drain_and_had_not_been_told_is_told_by_the_next(tmp_path: Path) -> None:
    """Its first supervisor died between its note and the signal."""
    record = replace(left_behind(tmp_path), state="draining")

    async def play() -> None:
        async with Stage(tmp_path) as stage:
            stage.supervisor.adopt([record])
            ended = await stage.until("exited")
            assert (ended.exit_code, ended.crashed) == (0, False)

    asyncio.run(play())


def test_one_that_drains_is_not_told_again(tmp_path: Path) -> None:
    """A second signal would tell it to drop what it has, and it would end with another code."""

    async def play() -> None:
        async with Stage(tmp_path) as first, Stage(tmp_path) as second:
            record = await first.start(launch(env={**IRIS, "INFERENCE_DRAIN_DELAY_S": "10"}))
            await first.supervisor.close(leave_running=True)
            os.kill(record.pid, signal.SIGTERM)
            async with asyncio.timeout(WAIT_S):
                while await predictor_state(record.checks) != STOPPING:
                    await asyncio.sleep(0.01)
            second.supervisor.adopt([replace(record, state="draining")])
            ended = await second.until("exited")
            assert (ended.exit_code, ended.crashed) == (0, False)

    asyncio.run(play())


def test_a_crash_after_the_adoption_is_told_with_its_reason(tmp_path: Path) -> None:
    record = left_behind(tmp_path, program(tmp_path, "exec sleep 600"))

    async def play() -> None:
        async with Stage(tmp_path) as stage:
            stage.supervisor.adopt([record])
            os.kill(record.pid, signal.SIGSEGV)
            assert (await stage.until("exited")).reason == "ended by signal 11 (segmentation fault)"

    asyncio.run(play())


def test_an_end_that_nobody_saw_is_told_as_the_shim_noted_it(tmp_path: Path) -> None:
    go = tmp_path / "go"
    record = left_behind(tmp_path, program(tmp_path, f"while [ ! -e {go} ]; do sleep 0.02; done; exit 7"))
    go.touch()

    async def play() -> None:
        async with Stage(tmp_path) as stage:
            await eventually_async(lambda: shim.read_exit(stage.home.run / f"{record.id}.exit") is not None)
            await eventually_async(lambda: not alive(record.pid))
            stage.supervisor.adopt([record])
            assert [(told.state, told.exit_code, told.crashed) for told in stage.told] == [("exited", 7, True)]
            assert stage.told[0].reason == "exit code 7"

    asyncio.run(play())


@pytest.mark.parametrize(
    ("stranger", "reason", "crashed"),
    [
        ({"start_ticks": 1}, "exited while the control process was down; exit status unknown", True),
        ({"boot_id": "another"}, "the machine was restarted", False),
        ({"pid": 0}, "the control process exited before this started", False),
    ],
)
def test_a_number_that_another_process_has_is_left_alone(
    tmp_path: Path, stranger: dict[str, object], reason: str, crashed: bool
) -> None:
    async def play() -> None:
        async with Stage(tmp_path, python=program(tmp_path, "exec sleep 600")) as stage:
            stage.supervisor.launch(launch())
            await eventually_async(lambda: stage.supervisor.replicas()[0].pid > 0)
            record = replace(stage.supervisor.replicas()[0], id="other", **stranger)
            stage.supervisor.adopt([record])
            ended = await stage.until("exited", "other")
            assert (ended.reason, ended.crashed) == (reason, crashed)
            assert alive(stage.supervisor.replicas()[0].pid)

    asyncio.run(play())


def test_processes_of_this_home_that_no_record_knows_are_ended(tmp_path: Path) -> None:
    record = left_behind(tmp_path, program(tmp_path, "exec sleep 600"))

    async def play() -> None:
        async with Stage(tmp_path) as stage:
            # A process has no environment while it begins its program.
            await eventually_async(lambda: {name for _, name in replica_processes(stage.home)} == {record.id})
            stage.supervisor.adopt([])
            await eventually_async(lambda: not alive(record.pid))
            assert not stage.told

    asyncio.run(play())


def test_processes_of_another_home_are_none_of_ours(tmp_path: Path) -> None:
    env = {**os.environ, ENV_HOME: str(tmp_path / "elsewhere"), ENV_REPLICA: "x"}
    with subprocess.Popen(["sleep", "600"], env=env) as other:

        async def play() -> None:
            async with Stage(tmp_path) as stage:
                stage.supervisor.adopt([])
                assert other.poll() is None

        try:
            asyncio.run(play())
            assert other.poll() is None
        finally:
            other.kill()


def test_what_is_stored_of_a_replica_comes_back_as_it_was(tmp_path: Path) -> None:
    async def play() -> None:
        async with Stage(tmp_path, python=program(tmp_path, "exec sleep 600")) as stage:
            record = stage.supervisor.launch(launch(env=IRIS, memory_limit=1 << 30))
            text = msgspec_json.encode(record)
            assert json.loads(text)["checks"]["memory_limit"] == 1 << 30
            assert msgspec_json.decode(text, type=Replica) == record

    asyncio.run(play())


def test_killed_at_any_moment_a_supervisor_leaves_nothing_that_the_next_one_loses(tmp_path: Path) -> None:
    killed_at_random(tmp_path, times=3)


@pytest.mark.long
def test_killed_at_any_moment_many_times(tmp_path: Path) -> None:
    killed_at_random(tmp_path, times=60)


def killed_at_random(folder: Path, times: int) -> None:
    dice, python = random.Random(times), program(folder, "exec sleep 600")
    for turn in range(times):
        place = folder / str(turn)
        place.mkdir()
        here = Path(__file__).parent
        command = [sys.executable, "-c", BUSY, str(here), str(here.parents[1]), str(place), python]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as busy:
            assert busy.stdout is not None
            busy.stdout.readline()
            time.sleep(dice.uniform(0.0, 0.5))  # the moment of the kill is what is drawn; nothing is waited for
            busy.kill()
        records = [msgspec_json.decode(path.read_bytes(), type=Replica) for path in place.glob("store/*.json")]
        asyncio.run(taken_over(place, records))


async def taken_over(place: Path, records: list[Replica]) -> None:
    """Each stored replica either goes on or is reported, and no process runs that no record knows."""
    async with Stage(place) as stage:
        stage.supervisor.adopt(records)
        known = {replica.id for replica in stage.supervisor.replicas()}
        ended = {told.id for told in stage.told if told.state == "exited"}
        assert known | ended == {record.id for record in records if record.state != "exited"}
        await eventually_async(
            lambda: settled(stage), lambda: f"{sorted(replica_processes(stage.home))}, {stage.supervisor.replicas()}"
        )


def settled(stage: Stage) -> bool:
    """Those that were draining may still end."""
    return {name for _, name in replica_processes(stage.home)} == {
        replica.id for replica in stage.supervisor.replicas()
    }
