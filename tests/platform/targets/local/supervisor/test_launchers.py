"""The supervisor with a launcher that is not `local`: one whose replicas do what the test says."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import NoReturn

import pytest
from msgspec import convert, structs, to_builtins
from tests.eventually import eventually_async
from tests.platform.targets.local.runs import replica
from tests.platform.targets.local.supervisor.supervisor_harness import Stage, launch, lines, program

from pilotlight.control_plane import launcher_registry
from pilotlight.errors import PlatformError
from pilotlight.targets.local.control.persistence import StateWriter
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.manifests.service_spec_types import Probe, RevisionSpec
from pilotlight.targets.local.process_identity import Identity
from pilotlight.targets.local.store.store import Store
from pilotlight.targets.local.supervisor.gpus import Device
from pilotlight.targets.local.supervisor.isolation import cgroups
from pilotlight.targets.local.supervisor.launcher import Ended, LaunchObserver, ReplicaAddress, ReplicaHandle
from pilotlight.targets.local.supervisor.process_launcher import ProcessHandle, ProcessLauncher
from pilotlight.targets.local.supervisor.replica_record import Launch, Replica, Usage
from pilotlight.targets.local.supervisor.shim import Exit

GIB = 1 << 30
QUEUED = "PENDING: Resources"


class Handle:
    def __init__(self, observer: LaunchObserver) -> None:
        self.observer = observer
        self.calls: list[str] = []

    def terminate(self) -> None:
        self.calls.append("terminate")

    def kill(self) -> None:
        self.calls.append("kill")

    def usage(self) -> Usage:
        return Usage(1.0, 8 * GIB)

    def age_s(self) -> float:
        return 5.0

    async def detach(self) -> None:
        self.calls.append("detach")


class Scripted:
    """A queue. `living` are the replicas that it runs, by id."""

    name = "queue"
    allocates_gpus = False

    def __init__(self, processes: ProcessLauncher, living: Collection[str] = ()) -> None:
        self.processes, self.living = processes, living
        self.handles: dict[str, Handle] = {}
        self.swept: list[list[str]] = []
        self.closed: list[bool] = []
        self.broken = ""
        self.during_start: Callable[[], None] = lambda: None

    def check(self, revision: RevisionSpec) -> None:
        if revision.container.command:
            raise PlatformError("command = sh, but this queue takes none")

    def start(self, launch: Launch, record: Replica, observer: LaunchObserver) -> Handle:
        if self.broken:
            raise PlatformError(self.broken, "start it")
        observer.on_pending(QUEUED, "17")
        self.during_start()
        self.handles[record.id] = Handle(observer)
        return self.handles[record.id]

    def adopt(self, record: Replica, observer: LaunchObserver) -> ReplicaHandle | Ended:
        if record.id not in self.living:
            return Ended(Exit(1), "NODE_FAIL", lost=True)
        self.handles[record.id] = Handle(observer)
        return self.handles[record.id]

    async def running(self) -> list[str]:
        return sorted(self.handles)

    async def sweep(self, known: Collection[str]) -> None:
        self.swept.append(sorted(known))

    async def close(self, leave_running: bool) -> None:
        self.closed.append(leave_running)


class QueueStage(Stage):
    def __init__(self, folder: Path, *living: str) -> None:
        self.queue: Scripted | None = None
        self._living = living
        super().__init__(folder, launchers={"queue": self._make}, devices=lambda: [Device(0)])

    def _make(self, processes: ProcessLauncher) -> Scripted:
        assert self.queue is None, "it is made once"
        self.queue = Scripted(processes, self._living)
        return self.queue

    def submit(self, replica: str = "iris-1", memory_limit: int | None = None, gpus: int = 0) -> Handle:
        order = launch(replica, memory_limit=memory_limit, gpus=gpus)
        self.supervisor.launch(replace(order, revision=replace(order.revision, target="queue")))
        assert self.queue is not None
        return self.queue.handles[replica]

    async def __aexit__(self, *_: object) -> None:
        for handle in self.queue.handles.values() if self.queue else ():
            handle.observer.on_exited(Ended())
        await super().__aexit__(None, None, None)


@asynccontextmanager
async def predictor() -> AsyncIterator[int]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


def test_a_replica_is_pending_until_the_queue_starts_it_and_is_then_probed_where_it_runs(tmp_path: Path) -> None:
    async def play() -> None:
        async with QueueStage(tmp_path) as stage, predictor() as port:
            handle = stage.submit(gpus=2)
            record = stage.supervisor.replicas()[0]
            assert (record.state, record.reason, record.launcher, record.handle) == ("pending", QUEUED, "queue", "17")
            assert record.gpus == (), "the queue gives them"
            handle.observer.on_started(ReplicaAddress("127.0.0.1", {8080: port}), node="node-3")
            ready = await stage.until("ready")
            assert (ready.host, ready.port, ready.grpc_port) == ("127.0.0.1", port, 8081)
            assert (ready.checks.readiness.port, ready.node, ready.handle, ready.reason) == (port, "node-3", "17", "")
            handle.observer.on_exited(Ended(Exit(1), "TIMEOUT"))
            handle.observer.on_exited(Ended(Exit(2), "again"))
            assert stage.states() == ["starting", "ready", "exited"]
            ended = [record for record in stage.told if record.state == "exited"]
            assert [(each.reason, each.exit_code, each.crashed) for each in ended] == [("TIMEOUT", 1, True)]

    asyncio.run(play())


def test_a_pending_replica_is_cancelled_in_its_queue(tmp_path: Path) -> None:
    async def play() -> None:
        async with QueueStage(tmp_path) as stage:
            drained = stage.submit("iris-1")
            stage.supervisor.drain("iris-1", 60.0)
            drained.observer.on_pending("PENDING: Priority", "18")
            drained.observer.on_started(ReplicaAddress("127.0.0.1"))
            assert (stage.told[-1].state, stage.told[-1].handle) == ("draining", "18")
            stage.supervisor.drain("iris-1", 0.0)
            await eventually_async(lambda: drained.calls == ["terminate", "kill"], lambda: str(drained.calls))

    asyncio.run(play())


def test_a_request_to_end_that_comes_during_the_start_is_not_lost(tmp_path: Path) -> None:
    async def play() -> None:
        async with QueueStage(tmp_path) as stage:
            stage.submit("iris-1")
            assert stage.queue is not None
            stage.queue.during_start = lambda: stage.supervisor.drain("iris-2", 0.0)
            handle = stage.submit("iris-2")
            await eventually_async(lambda: handle.calls == ["terminate", "kill"], lambda: str(handle.calls))

    asyncio.run(play())


def test_a_start_that_the_queue_refuses_has_failed_with_its_reason(tmp_path: Path) -> None:
    async def play() -> None:
        async with QueueStage(tmp_path) as stage:
            stage.submit("iris-1").observer.on_exited(Ended(Exit(0)))
            assert stage.queue is not None
            stage.queue.broken = "the queue does not answer"
            order = launch("iris-2")
            stage.supervisor.launch(replace(order, revision=replace(order.revision, target="queue")))
            stage.supervisor.drain("iris-2", 60.0)
            await eventually_async(lambda: not stage.supervisor.replicas())
            assert stage.told[-1].reason == "could not be started: the queue does not answer; start it"

    asyncio.run(play())


def test_a_target_without_a_launcher_is_refused_and_its_replicas_are_given_up(tmp_path: Path) -> None:
    async def play() -> None:
        async with QueueStage(tmp_path) as stage:
            order = launch()
            with pytest.raises(PlatformError, match="target = moon, but the control process runs only local, queue"):
                stage.supervisor.launch(replace(order, revision=replace(order.revision, target="moon")))
            stage.supervisor.adopt([replica(launcher="moon")])
            assert (stage.told[-1].state, stage.told[-1].crashed) == ("exited", False)
            assert stage.queue is None, "it is made for the first service that uses it"
            refused = replace(launch(command=("sh",)).revision, target="queue")
            with pytest.raises(PlatformError, match="this queue takes none"):
                stage.supervisor.check(refused)
            stage.supervisor.launch(replace(order, revision=refused))  # of a stored release: other services start, too
            await eventually_async(lambda: not stage.supervisor.replicas())
            assert stage.told[-1].reason == "could not be started: command = sh, but this queue takes none"

    asyncio.run(play())


def _with_readiness(record: Replica, readiness: Probe) -> Replica:
    return structs.replace(record, checks=structs.replace(record.checks, readiness=readiness))


def test_what_runs_in_the_queue_is_adopted_and_the_rest_is_reported_or_swept(tmp_path: Path) -> None:
    async def play() -> None:
        async with QueueStage(tmp_path, "queued", "serving") as stage, predictor() as port:
            impatient = replace(replica().checks.readiness, period_s=0.001, failure_threshold=1)
            queued = _with_readiness(replica(own="queued", state="pending", launcher="queue"), impatient)
            serving = replica(own="serving", state="unready", launcher="queue")
            serving = _with_readiness(serving, replace(impatient, port=port, period_s=0.05))
            gone = replica(own="gone", launcher="queue")
            never = replica(own="never", state="waiting", launcher="queue")
            stage.supervisor.adopt([queued, serving, gone, never])
            assert {each.id: (each.reason, each.crashed) for each in stage.told} == {
                "gone": ("NODE_FAIL", False),
                "never": ("the control process exited before this started", False),
            }
            await stage.until("ready", "serving")
            assert stage.queue is not None
            assert stage.queue.swept == [["queued", "serving"]]
            assert stage.supervisor.replicas()[0] == queued
            stage.queue.handles["queued"].observer.on_started(ReplicaAddress("127.0.0.1", {1: port}))
            assert (await stage.until("ready", "queued")).checks.readiness.port == port

    asyncio.run(play())


@pytest.mark.parametrize("leave_running", [True, False])
def test_a_launcher_is_closed_with_the_supervisor(tmp_path: Path, leave_running: bool) -> None:
    async def play() -> None:
        async with QueueStage(tmp_path) as stage:
            handle = stage.submit()
            closing = asyncio.ensure_future(stage.supervisor.close(leave_running=leave_running))
            await eventually_async(lambda: bool(handle.calls))
            if not leave_running:
                handle.observer.on_exited(Ended())
            await closing
            assert handle.calls == ["detach" if leave_running else "terminate"]
            assert stage.queue is not None
            assert stage.queue.closed == [leave_running]

    asyncio.run(play())


def test_the_watchdog_of_this_machine_leaves_the_memory_of_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "find_groups", lambda *_, **__: None)

    async def play() -> None:
        async with QueueStage(tmp_path) as stage:
            handle = stage.submit(memory_limit=GIB)
            assert stage.supervisor.usage("iris-1").resident_bytes == 8 * GIB
            stage.supervisor._housekeeper._enforce_memory_limits()
            assert handle.calls == []

    asyncio.run(play())


class Client:
    """Observer of a client program."""

    def __init__(self) -> None:
        self.identity = Identity(0, "", 0)
        self.ended: list[Ended] = []

    def on_process(self, identity: Identity, forked: bool = False) -> None:
        assert not forked
        self.identity = identity

    def on_ending(self) -> None:
        assert not self.ended

    def on_exited(self, ended: Ended) -> None:
        self.ended.append(ended)


def test_a_client_program_is_run_and_adopted_as_a_replica_is(tmp_path: Path) -> None:
    async def play() -> None:
        processes = ProcessLauncher(Home(tmp_path / "home").create(), "")
        script = "trap 'echo bye; exit 7' TERM; echo $NAME $PILOTLIGHT_REPLICA; while :; do sleep 0.01; done"
        record = replica(own="iris-1", log=str(processes.home.logs / "default/iris/iris-1.log"))
        first, second = Client(), Client()
        handle = processes.spawn_command(record, [program(tmp_path, script)], {"NAME": "v", "PATH": "/bin"}, first)
        await eventually_async(lambda: Path(record.log).exists() and lines(record.log) == ["v iris-1"])
        assert handle.usage().resident_bytes > 0
        await handle.detach()
        adopted = processes.adopt(structs.replace(record, **first.identity._asdict()), second)
        assert isinstance(adopted, ProcessHandle)
        adopted.terminate()
        await eventually_async(lambda: bool(second.ended))
        assert (first.ended, second.ended) == ([], [Ended(Exit(7))])
        assert lines(record.log) == ["v iris-1", "bye"]
        assert processes.adopt(structs.replace(record, **first.identity._asdict()), second) == Ended(Exit(7))
        await processes.close(leave_running=False)

    asyncio.run(play())


def test_installations_that_take_long_leave_threads_for_other_replicas(tmp_path: Path) -> None:
    """Confining a process and clearing up after one run in asyncio's threads, of which there are at most 32."""

    async def play() -> None:
        processes, released = ProcessLauncher(Home(tmp_path / "home").create(), ""), Event()

        def install() -> NoReturn:
            released.wait(60)
            raise OSError("cannot be installed")

        clients = [Client() for _ in range(33)]
        for number, client in enumerate(clients):
            handle = ProcessHandle(processes, replica(own=f"iris-{number}"), client)
            handle.execute_prepared(install, lambda: None)
        try:
            assert await asyncio.wait_for(asyncio.to_thread(int), 30) == 0
        finally:
            released.set()
        await eventually_async(lambda: all(client.ended for client in clients))

    asyncio.run(play())


def test_a_change_of_handle_or_node_is_stored_and_an_earlier_record_has_neither(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "state.db")
    writer = StateWriter(store)
    record = replica()
    for fields in ({}, {"handle": "17"}, {"node": "node-3"}):
        record = structs.replace(record, **fields)
        writer.save_replica(record)
        assert [convert(each, Replica) for each in store.replicas()] == [record]
    fields = {
        name: value for name, value in to_builtins(replica()).items() if name not in ("launcher", "handle", "node")
    }
    assert convert(fields, Replica) == replica()
    store.close()


class Remnants(Scripted):
    swept_homes: list[Path] = []  # noqa: RUF012

    async def sweep(self, known: Collection[str]) -> None:
        if self.swept_homes:
            raise PlatformError("it does not answer")
        self.swept_homes.append(self.processes.home.root)


def test_a_home_without_a_control_process_is_swept_by_every_launcher(tmp_path: Path) -> None:
    table = dict.fromkeys(("docker", "slurm"), f"{__name__}:Remnants")
    (tmp_path / "run/slurm/job").mkdir(parents=True)
    assert asyncio.run(launcher_registry.sweep_all(Home(tmp_path), table)) == ["slurm: it does not answer"]
    assert Remnants.swept_homes == [tmp_path]
