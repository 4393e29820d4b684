"""Supervisor of all replicas of one home: starts, watches and ends them, and adopts those of an earlier supervisor.

Called from one event loop; every call returns at once, and `on_change` reports the outcome.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from shutil import rmtree
from time import monotonic
from types import MappingProxyType
from typing import Final

from pilotlight.errors import NotFound, PlatformError
from pilotlight.k8s.names import ANNOTATION_GPU_MEMORY
from pilotlight.targets.local.delayed_queue import log_and_continue
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.manifests.service_spec_types import RevisionSpec
from pilotlight.targets.local.scaling.gpu_admission import DEFAULT_RULES, Admission, Gpu, Rules, impossible
from pilotlight.targets.local.supervisor import container_command, logs, shim
from pilotlight.targets.local.supervisor.gpus import (
    PARKED_PERCENT,
    Device,
    GpuFacts,
    GpuQueue,
    Hold,
    find_devices,
    parking_budget,
)
from pilotlight.targets.local.supervisor.launcher import NOT_STARTED, Ended, Launcher, ReplicaHandle
from pilotlight.targets.local.supervisor.parking.replica_parking import ReplicaParking, parking_of
from pilotlight.targets.local.supervisor.parking.self_parking import ParkResult
from pilotlight.targets.local.supervisor.process_inspection import OrphanReaper, replica_of_process
from pilotlight.targets.local.supervisor.process_launcher import ProcessLauncher
from pilotlight.targets.local.supervisor.replica_record import Launch, Replica, Usage
from pilotlight.targets.local.supervisor.shim import Exit
from pilotlight.targets.local.supervisor.supervised_replica import SupervisedReplica

INTERVAL_S: Final = 1.0
ROTATE_EVERY: Final = 5  # intervals
LauncherFactory = Callable[[ProcessLauncher], Launcher]


class Housekeeper:
    """Memory limits without cgroups, a running log writer, and rotation of logs without one, while replicas run.

    `running` is the supervisor's live table.
    """

    def __init__(self, running: Mapping[str, SupervisedReplica], processes: ProcessLauncher) -> None:
        self._running, self._limits, self._outputs = running, processes.limits, processes.outputs
        self._task: asyncio.Task[None] | None = None

    def wake(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._loop())

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _loop(self) -> None:
        ticks = 0
        while True:
            await asyncio.sleep(INTERVAL_S)
            if not self._running:
                return
            ticks += 1
            with log_and_continue("checking the memory of replicas"):
                self._enforce_memory_limits()
            self._outputs.wake(b"")  # starts a writer in place of one that was killed
            if ticks % ROTATE_EVERY == 0:
                with log_and_continue("cutting logs"):
                    for log in [each.record.log for each in self._running.values()]:
                        if not self._outputs.has(log):
                            await asyncio.to_thread(logs.rotate, Path(log))

    def _enforce_memory_limits(self) -> None:
        """Kill processes above their memory limit where no cgroup enforces it, which would reclaim pages of files.

        Pages that forks share count for each.
        """
        for running in self._running.values():
            limit = running.record.checks.memory_limit
            if limit is None or running.record.launcher != ProcessLauncher.name or self._limits.name != "watchdog":
                continue
            used = running.usage().unreclaimable_bytes
            if used > limit:
                running.kill(logs.over_limit(used, limit))


class Supervisor:
    """Replicas of one home that have not exited."""

    def __init__(
        self,
        home: Home,
        on_change: Callable[[Replica], None],
        processes: ProcessLauncher,
        launchers: Mapping[str, LauncherFactory] = MappingProxyType({}),
        devices: Callable[[], Sequence[Device]] = find_devices,
        gpu_facts: Callable[[Replica], GpuFacts] = lambda record: GpuFacts(),
        gpu_rules: Rules = DEFAULT_RULES,
        parked_percent: float = PARKED_PERCENT,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._home, self._on_change, self._processes, self._factories = home, on_change, processes, launchers
        self._launchers: dict[str, Launcher] = {processes.name: processes}
        self._sweeps: list[asyncio.Task[None]] = []
        self.secrets: dict[tuple[str, str], Mapping[str, str]] = {}  # by service; nowhere but in memory
        self.gpus = GpuQueue(devices, gpu_facts, clock, partial(replica_of_process, home), gpu_rules)
        self._parking = ReplicaParking(self._token, lambda: parking_budget(parked_percent))
        self._running: dict[str, SupervisedReplica] = {}
        self._none_left = asyncio.Event()
        self._orphans = OrphanReaper(home, self._running)
        self._housekeeper = Housekeeper(self._running, processes)

    def _token(self) -> str:
        return self._home.token.read_text().strip() if self._home.token.exists() else ""

    @property
    def limits(self) -> str:
        """How limits are enforced on this machine: `cgroup v2`, `cgroup v1` or `watchdog`."""
        return self._processes.limits.name

    def replicas(self) -> Sequence[Replica]:
        return [running.record for running in self._running.values()]

    def usage(self, replica_id: str) -> Usage:
        return self._find(replica_id).usage()

    def read_status(self, replica_id: str) -> None:
        """Read the /status of a predictor again; its record changes with the response."""
        self._find(replica_id).read_status()

    def check(self, revision: RevisionSpec) -> None:
        """Raise PlatformError for a revision that no launcher, or no GPU of this machine, can run."""
        launcher, container = self._launcher(revision.target), revision.container
        launcher.check(revision)
        if launcher.allocates_gpus and container.gpu_memory:
            gpus = [Gpu(device.id, device.memory) for device in self.gpus.find()]
            if problem := impossible(container.gpus, container.gpu_memory, gpus):
                raise PlatformError(f"{revision.service}: {problem}", f"lower {ANNOTATION_GPU_MEMORY}")

    def _launcher(self, name: str) -> Launcher:
        """Return a launcher. Making it begins to end what it runs for this home without a record."""
        if name not in self._launchers:
            if name not in self._factories:
                names = ", ".join([*self._launchers, *self._factories])
                raise PlatformError(f"target = {name}, but the control process runs only {names}")
            launcher = self._launchers[name] = self._factories[name](self._processes)
            self._sweeps.append(asyncio.get_running_loop().create_task(self._sweep(launcher)))
        return self._launchers[name]

    async def _sweep(self, launcher: Launcher) -> None:
        what = f"stopping unrecorded replicas of {launcher.name}"
        with log_and_continue(what), suppress(PlatformError):  # of a daemon that does not answer
            await launcher.sweep(self._running)

    def launch(self, launch: Launch) -> Replica:
        """Start a replica, or queue it for a GPU (`waiting`). Raise PlatformError if its target has no launcher.

        One that its launcher does not accept, such as after a start with another environment, is a failed start.
        """
        if launch.replica in self._running:
            raise PlatformError(f"replica = {launch.replica} is already running; every start needs a new id")
        launcher, container = self._launcher(launch.revision.target), launch.revision.container
        running = self._register(_record(launch, self._home), launch)
        running.muted = True  # the caller gets the record as the return value
        try:
            if launcher.allocates_gpus and container.gpus:
                running.update(state="waiting")
                self.gpus.enqueue(launch.replica, container.gpus, container.gpu_memory or 0)
                self.admit()
            else:
                self._start(running)
        finally:
            running.muted = False
        return running.record

    def drain(self, replica_id: str, grace_s: float) -> None:
        """Send SIGTERM, and SIGKILL after `grace_s` seconds."""
        running = self._find(replica_id)
        running.stop_requested = True
        self.gpus.waiting.pop(replica_id, None)
        if running.record.state == "waiting":
            self._remove(running, Exit(), "stopped before it started")
        else:
            running.drain(grace_s)

    def park(self, replica_id: str) -> None:
        """Make a replica free its GPUs while its processes stay; drain one that cannot park."""
        running = self._find(replica_id)
        running.park(self.gpus.bytes_used(running.record), self._parked)

    def _parked(self, running: SupervisedReplica, result: ParkResult) -> None:
        if result.error:
            running.stop_requested = True
            running.update(unparkable=result.error, parks_never=result.never)
            running.drain(running.record.checks.grace_s)
        elif running.record.state == "parked" and self.gpus.release(running.record.id):
            self.admit()  # not if it was unparked in the meantime

    def _wake_failed(self, running: SupervisedReplica, error: str) -> None:
        running.stop_requested = True
        running.update(wake_failure=error)
        running.kill("it could not be made ready again after it was parked")

    def admit(self) -> Admission:
        """Start or unpark the replicas that get their GPUs now; the caller sees to what must leave for others."""
        decision = self.gpus.admit({name: running.record for name, running in self._running.items()})
        # Callbacks of any of these may admit, end or queue others; the queue holds all GPUs of this decision already.
        for name in decision.admitted:
            running, hold = self._running.get(name), self.gpus.held.get(name)
            if running is None or hold is None:
                continue
            if running.record.state == "parked":
                running.update(gpu_memory=hold.memory)
                running.unpark(self._wake_failed)
            elif running.record.state == "waiting":
                self._start(running, *hold)
        for name, reason in decision.reasons.items():
            if name in self.gpus.waiting:
                self._running[name].update(reason=reason)
        records = {name: running.record for name, running in self._running.items()}
        for name in self.gpus.blocking_contexts(decision, records):
            self._running[name].free_context(self.admit)
        return decision

    def unpark(self, replica_id: str) -> None:
        """Make a parked replica ready once its GPUs are free; its models load back with the first request."""
        running = self._find(replica_id)
        if running.record.state == "parking":
            running.unpark(self._wake_failed)  # it still holds its GPUs
        record = running.record
        if record.state != "parked":
            return
        if not record.gpus or replica_id in self.gpus.held:  # by a callback of its parking: it has not left yet
            running.unpark(self._wake_failed)
        elif self.gpus.enqueue(replica_id, len(record.gpus), record.gpu_memory):
            self.admit()

    def cancel_unpark(self, replica_id: str) -> None:
        running = self._find(replica_id)
        if running.record.state == "parked":
            self.gpus.waiting.pop(replica_id, None)
            running.update(reason="")

    def adopt(self, replicas: Sequence[Replica]) -> None:
        """Continue with the living ones of the stored replicas; kill processes without a record."""
        for record in replicas:
            if record.state == "exited" or record.id in self._running:
                continue
            running = self._register(record, None)
            running.stop_requested = record.state == "draining" and not record.reason
            found = self._adopt(running)
            if isinstance(found, Ended):
                self._exited(running, found)
                continue
            if record.gpus and record.state != "parked":
                self.gpus.held[record.id] = Hold(record.gpus, record.gpu_memory)
            running.adopt(found)
            if record.state == "waking" or (record.state == "parking" and record.parking.method != "predictor"):
                running.unpark(self._wake_failed)  # nobody knows how far it was
            elif record.state == "parking":
                self.park(record.id)  # the request may not have been sent; parking is idempotent
        self._orphans.kill()
        self._processes.remove_leftovers(self._running)

    def _adopt(self, running: SupervisedReplica) -> ReplicaHandle | Ended:
        if running.record.state == "waiting":
            return NOT_STARTED
        try:
            return self._launcher(running.record.launcher).adopt(running.record, running)
        except PlatformError as error:  # of a release that had more launchers
            return Ended(reason=str(error), lost=True)

    async def close(self, leave_running: bool) -> None:
        """End all replicas, or leave them running for the next supervisor to adopt."""
        if not leave_running and self._running:
            for running in list(self._running.values()):
                self.drain(running.record.id, running.record.checks.grace_s)
            await self._none_left.wait()
        for running in list(self._running.values()):
            await running.detach()
        self._running.clear()
        self._housekeeper.close()
        self._orphans.close()
        for task in self._sweeps:
            task.cancel()
        for launcher in self._launchers.values():
            await launcher.close(leave_running)
        await self._parking.close()

    def _find(self, replica_id: str) -> SupervisedReplica:
        if replica_id not in self._running:
            raise NotFound(f"replica {replica_id} does not run here")
        return self._running[replica_id]

    def _register(self, record: Replica, launch: Launch | None) -> SupervisedReplica:
        running = SupervisedReplica(record, launch, self._parking, self._on_change, self._exited)
        self._running[record.id] = running
        self._none_left.clear()
        self._housekeeper.wake()
        return running

    def _start(self, running: SupervisedReplica, gpus: tuple[int | str, ...] = (), gpu_memory: int = 0) -> None:
        record = running.record
        running.update(state="starting", reason="", gpus=gpus, gpu_memory=gpu_memory)
        secrets = self.secrets.get((record.namespace, record.service), {})
        running.start(self._launcher(record.launcher), secrets)

    def _exited(self, running: SupervisedReplica, ended: Ended) -> None:
        running.stop_requested |= ended.lost
        reason = running.end_reason or ended.reason
        if not reason and not running.stop_requested:
            reason = logs.describe(ended.exit, logs.tail(running.record.log))
        self._remove(running, ended.exit, reason)

    def _remove(self, running: SupervisedReplica, ended: Exit, reason: str) -> None:
        """Report a replica as exited and give its GPUs to waiting ones."""
        record = running.record
        running.stop_probing()
        if self._running.pop(record.id, None) is None:
            return  # already reported, or left to the next supervisor
        freed = self.gpus.release(record.id)
        self._orphans.kill()  # whatever session its children are in
        if not self._running:
            self._none_left.set()
        shim.exit_file(self._home, record.id).unlink(missing_ok=True)
        rmtree(self._home.sockets / record.id, ignore_errors=True)
        running.update(
            state="exited", reason=reason, exit_code=ended.code, signal=ended.signal, crashed=not running.stop_requested
        )
        logs.prune(Path(record.log).parent, self._running)
        if freed:
            self.admit()


def _record(launch: Launch, home: Home) -> Replica:
    revision, ports = launch.revision, container_command.ports(launch.revision.container)
    return Replica(
        id=launch.replica, namespace=revision.namespace, service=revision.service, workload=revision.workload,
        revision=revision.name, checks=container_command.checks(launch, home), port=ports.http, grpc_port=ports.grpc,
        launcher=revision.target,
        log=str(home.logs / revision.namespace / revision.service / f"{launch.replica}.log"),
        parking=parking_of(revision.container, revision.service),
    )  # fmt: skip
