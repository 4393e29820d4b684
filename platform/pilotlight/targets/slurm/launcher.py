"""Launcher of `slurm`: a job for each replica, submitted by sbatch, and one squeue for all jobs of the home.

Our predictor listens on unix sockets of a folder in the home, which nodes must see; on another node they are forwarded
by ssh, unless the option `address` is `node`. While the controller does not answer, all jobs stay as they were.
"""

import asyncio
import logging
import os
import shutil
import socket
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from time import monotonic

from pilotlight.errors import PlatformError, TimedOut, UsageError
from pilotlight.targets.docker.run_arguments import check_secrets
from pilotlight.targets.local.delayed_queue import log_and_continue
from pilotlight.targets.local.manifests.service_spec_types import RevisionSpec
from pilotlight.targets.local.model_snapshots import ModelSnapshots
from pilotlight.targets.local.supervisor import container_command, logs
from pilotlight.targets.local.supervisor.launcher import Ended, LaunchObserver
from pilotlight.targets.local.supervisor.process_launcher import ProcessLauncher
from pilotlight.targets.local.supervisor.replica_record import Launch, Replica, Usage
from pilotlight.targets.local.supervisor.shim import Exit
from pilotlight.targets.programs import Programs
from pilotlight.targets.slurm.job import (
    BEGUN,
    SBATCH,
    container_of,
    home_key,
    job_folder,
    read_note,
    replica_job,
    replica_route,
    scancel_arguments,
)
from pilotlight.targets.slurm.options_and_checks import check_conf, check_time
from pilotlight.targets.slurm.queue import ACCOUNT, QUEUE, Queued, fields, read_account, read_exit, read_queue
from pilotlight.targets.slurm.script import SlurmJob, sbatch_arguments, script
from pilotlight.targets.ssh_tunnel import Forwards, Tunnel, Tunnels

POLL_S, CALM_POLL_S, CALM_S = 1.0, 5.0, 60.0
log = logging.getLogger("pilotlight.slurm")


def poll_interval(calm_s: float) -> float:
    """Return the seconds to the next squeue, `calm_s` after the last change of a job."""
    return POLL_S if calm_s < CALM_S else CALM_POLL_S


def end_of(job: Queued, status: Exit) -> Ended:
    """Return how a job ended; exit status and log say why, or Slurm does."""
    own = job.state in ("COMPLETED", "FAILED")
    return Ended(status, "" if own else f"Slurm's job {job.id}: {job.explanation}", lost=job.lost)


class JobHandle:
    """Job of a replica; implements `ReplicaHandle`."""

    def __init__(self, launcher: "SlurmLauncher", record: Replica, observer: LaunchObserver) -> None:
        self._launcher, self.observer = launcher, observer
        self.name, self.id = record.id, record.handle
        self.started = record.state not in ("starting", "pending")
        self.draining = record.state == "draining"  # the signal may not have been sent
        self.submitting: asyncio.Task[None] | None = None
        self.connecting: asyncio.Task[None] | None = None
        self.stop = ""  # terminate or kill
        self.sent = ("", "")  # the last `stop` that Slurm got, and the state of the job at that time
        self.failure = ""  # why the launcher ended it
        self.ended = False
        self.running_since = 0.0

    def terminate(self) -> None:
        self.stop = self.stop or "terminate"
        self._launcher.wake()

    def kill(self) -> None:
        self.stop = "kill"
        self._launcher.wake()

    def processes(self) -> Sequence[int]:
        return ()  # they are on another node

    def usage(self) -> Usage:
        return Usage()

    def age_s(self) -> float:
        return monotonic() - self.running_since if self.running_since else 0.0

    async def detach(self) -> None:
        if self.submitting is not None:
            await self.submitting
        self._launcher.forget(self)


class SlurmLauncher:
    """Implements `Launcher`. Programs run in threads, in the environment of the control process."""

    name = "slurm"
    allocates_gpus = False

    def __init__(self, processes: ProcessLauncher, environ: Mapping[str, str] = os.environ) -> None:
        self._processes, self._home = processes, processes.home
        self._programs = Programs(environ)
        self._tunnels = Tunnels(self._home.run / "tunnels", environ)
        self._jobs: dict[str, JobHandle] = {}
        self._nodes: dict[str, bool] = {}  # whether a node is this machine
        self._changed_at = 0.0
        self._changed = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    def check(self, revision: RevisionSpec) -> None:
        options = revision.container.options
        if not options.get("partition"):
            raise UsageError("partition is missing", "--target-option partition=NAME; see sinfo")
        if revision.container.host_port and revision.container.own_health:
            raise UsageError(f"hostPort = {revision.container.host_port}: a job cannot use a host port; remove it")
        check_time(options.get("time", ""))
        check_conf(options, self._programs.environ)
        check_secrets(revision.container, "sbatch", SBATCH)
        container_of(revision.container)

    def start(self, launch: Launch, record: Replica, observer: LaunchObserver) -> JobHandle:
        launch = container_command.with_pinned_models(launch, ModelSnapshots(self._home.models))
        job, values = replica_job(launch, record, self._home, self._processes.gateway_url, self._processes.python)
        job_folder(self._home, record.id).joinpath("near").mkdir(mode=0o700, parents=True, exist_ok=True)
        self._home.models.mkdir(mode=0o700, exist_ok=True)  # containers mount it
        os.close(logs.open_log(record.log))  # private: Slurm would make it by the umask
        observer.on_pending("being submitted to Slurm")
        handle = self._add(JobHandle(self, record, observer))
        handle.submitting = asyncio.get_running_loop().create_task(self._submit(handle, job, values))
        return handle

    async def _submit(self, handle: JobHandle, job: SlurmJob, values: Mapping[str, str]) -> None:
        programs = Programs({**self._programs.environ, **values})
        try:
            printed = await asyncio.to_thread(programs.run_checked, sbatch_arguments(job), script(job))
            handle.id = printed.strip().partition(";")[0]
            handle.observer.on_pending("PENDING", handle.id)
            self.wake()
        except PlatformError as error:
            handle.failure = str(error)
            handle.kill()  # sbatch may have submitted it though it did not return in time
        finally:
            handle.submitting = None

    def adopt(self, record: Replica, observer: LaunchObserver) -> JobHandle:
        return self._add(JobHandle(self, record, observer))

    def _add(self, handle: JobHandle) -> JobHandle:
        self._jobs[handle.name] = handle
        self.wake()
        return handle

    def forget(self, handle: JobHandle) -> None:
        self._jobs.pop(handle.name, None)

    def wake(self) -> None:
        """Read the queue now, and often for a while."""
        self._changed_at = monotonic()
        self._changed.set()
        if self._watching is None or self._watching.done():
            self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        while self._jobs:
            self._changed.clear()
            with log_and_continue("reading Slurm's queue"):
                await self._poll()
            with suppress(TimeoutError):
                async with asyncio.timeout(poll_interval(monotonic() - self._changed_at)):
                    await self._changed.wait()

    async def _poll(self) -> None:
        watched = [handle for handle in self._jobs.values() if handle.submitting is None]
        try:
            queue = await asyncio.to_thread(self._queue)
        except PlatformError as error:
            for handle in watched:
                if not handle.started:
                    handle.observer.on_pending(f"its state is not known: {error}")
            return
        for handle in watched:
            try:
                await self._observe(handle, queue.get(handle.name))
            except PlatformError as error:  # tried again: the controller answers no more
                log.warning("%s: %s", handle.name, error)

    def _queue(self) -> dict[str, Queued]:
        """Return the jobs of this home by name, those that ended a short time ago included."""
        words = ["squeue", "--noheader", "--states=all", f"--user={os.getuid()}", QUEUE]
        jobs = read_queue(self._programs.run_checked(words, hint="check it with scontrol ping"))
        key = home_key(self._home)
        return {job.name: job for job in jobs if (note := read_note(job.comment)) and note.home == key}

    async def _observe(self, handle: JobHandle, job: Queued | None) -> None:
        if job is None or job.over:
            ended = await asyncio.to_thread(self._ended, handle, job)
            reason = handle.failure or ("" if handle.stop else ended.reason)
            self._finish(handle, Ended(ended.exit, reason, ended.lost and not handle.failure))
            return
        stop = handle.stop or ("terminate" if handle.draining and job.meaning == "pending" else "")
        if stop and handle.sent != (stop, job.meaning) and (note := read_note(job.comment)):
            begun = (job_folder(self._home, handle.name) / BEGUN).exists()
            done = await asyncio.to_thread(self._programs.run, scancel_arguments(stop, job, note, begun=begun))
            handle.sent = (stop, job.meaning) if done.code == 0 else handle.sent
        if job.meaning == "pending":
            handle.observer.on_pending(job.explanation, job.id)
        elif job.meaning == "running" and (handle.connecting is None or handle.connecting.done()):
            handle.connecting = asyncio.get_running_loop().create_task(self._connect(handle, job))

    async def _connect(self, handle: JobHandle, job: Queued) -> None:
        """Report a running job with its address; open its tunnel, also one that has ended."""
        note = read_note(job.comment)
        forwards: Forwards = ()
        try:
            here = self._nodes.get(job.host)
            if here is None:
                here = self._nodes[job.host] = await asyncio.to_thread(self._is_here, job.host)
            assert note is not None
            address, forwards = replica_route(note, job, job_folder(self._home, handle.name), here=here)
            if forwards:
                await asyncio.to_thread(self._tunnels.open, handle.name, Tunnel(job.host, forwards))
        except PlatformError as error:
            log.warning("%s on %s cannot be reached: %s", handle.name, job.host, error)
            if forwards and not handle.started:  # else the controller is silent
                handle.failure = f"{error}; {error.hint}" if error.hint else str(error)
                handle.kill()
            return
        if self._jobs.get(handle.name) is not handle:
            if handle.ended:  # while the tunnel was opened
                await asyncio.to_thread(self._release, handle.name)
            return
        handle.running_since = handle.running_since or monotonic()
        if not handle.started:
            handle.started = True
            handle.observer.on_started(address, job.id, job.host)

    def _is_here(self, node: str) -> bool:
        """Return whether the node is this machine, by NodeHostName: NodeName may be any alias."""
        shown = fields(self._programs.run_checked(["scontrol", "--oneliner", "show", "node", node]))
        return _short(shown.get("NodeHostName", node)) == _short(socket.gethostname())

    def _ended(self, handle: JobHandle, job: Queued | None) -> Ended:
        """Return how a job ended, by the controller, or by the accounts if it has forgotten the job."""
        if job is not None:
            shown = fields(self._programs.run(["scontrol", "--oneliner", "show", "job", job.id]).out)
            known = shown.get("JobName") == handle.name
            return end_of(job, read_exit(shown.get("ExitCode", "")) if known else Exit())
        if not handle.id:
            return Ended(reason="the control process exited before it was submitted", lost=True)
        words = ["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={handle.id}", ACCOUNT]
        try:
            account = read_account(self._programs.run(words).out)
        except TimedOut:
            raise
        except PlatformError:  # sacct is not installed
            account = None
        if account is None or account[0].name != handle.name:
            return Ended(reason=f"Slurm no longer knows its job {handle.id}", lost=True)
        return end_of(*account)

    def _finish(self, handle: JobHandle, ended: Ended) -> None:
        if self._jobs.get(handle.name) is handle:  # not detached meanwhile
            self.forget(handle)
            handle.ended = True
            asyncio.get_running_loop().run_in_executor(None, self._release, handle.name)
            handle.observer.on_exited(ended)

    def _release(self, name: str) -> None:
        self._tunnels.close(name)
        shutil.rmtree(job_folder(self._home, name), ignore_errors=True)

    async def running(self) -> list[str]:
        return [name for name, job in (await asyncio.to_thread(self._queue)).items() if not job.over]

    async def sweep(self, known: Collection[str]) -> None:
        for name, job in (await asyncio.to_thread(self._queue)).items():
            if name not in known and not job.over:
                await asyncio.to_thread(self._programs.run, ["scancel", job.id])

    async def close(self, leave_running: bool) -> None:
        if self._watching is not None:
            self._watching.cancel()


def _short(host: str) -> str:
    return host.partition(".")[0].lower()
