"""Platform local: the predictor as a process of this machine, in its own session, which outlives its starter.

A shim records its exit status. The registry entry has PID, boot id and start time, against PID reuse. Log and exit
status are in the home folder until it is stopped. A model that may run code of an org runs in a sandbox. One that only
the control process or a batch job calls listens on a unix socket in a folder of its own, others on a port of loopback.
"""

import os
import re
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from select import select
from typing import Final

from pilotlight import contract
from pilotlight.errors import PlatformError, UsageError
from pilotlight.k8s.timestamps import utc_now
from pilotlight.microservices.platforms import Option
from pilotlight.microservices.platforms.host_ports import ENV_HOST, ENV_PORT
from pilotlight.microservices.registry import secret_references
from pilotlight.microservices.registry.container_command import ENV_MODEL, ENV_PYTHON
from pilotlight.microservices.registry.records import Entry, Job, PlatformStatus
from pilotlight.targets import secret_redaction
from pilotlight.targets.error_from_log import failed_event, last_error
from pilotlight.targets.local.home_directory import home
from pilotlight.targets.local.supervisor import shim
from pilotlight.targets.local.supervisor.gpus import Device, allocate, find_devices
from pilotlight.targets.local.supervisor.isolation import sandbox
from pilotlight.targets.local.supervisor.isolation.model_copy import copy_model
from pilotlight.targets.local.supervisor.isolation.sandbox_launcher import Plan
from pilotlight.targets.local.supervisor.process_inspection import Identity, identify
from pilotlight.wire import unix_socket
from pilotlight.wire.machine import last_lines

STOP_S: Final = 40.0  # a predictor drains within 30
POLL_S: Final = 0.02
HOST: Final = "127.0.0.1"
VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
TAIL: Final = 50
LISTEN_S: Final = 60.0  # a busy machine imports slowly
# Variables that a sandbox inherits: no secret is called like one of these.
SANDBOXED: Final = re.compile(r"PATH|LANG|TZ|LD_LIBRARY_PATH|(LC|CUDA|NVIDIA)_[A-Z_]+")
_JOB_ID: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,62}")


def end(identity: Identity) -> bool:
    """Send SIGTERM, then SIGKILL to its session. A pidfd prevents PID reuse. False: it had already ended."""
    sent = False
    for number in (signal.SIGTERM, signal.SIGKILL):
        if not _send(identity, number):
            return sent
        sent = True
        if within(STOP_S, lambda: not identity.alive):
            return sent
    raise PlatformError(f"process {identity.pid} does not end", f"kill -9 {identity.pid}")


def _send(identity: Identity, number: signal.Signals) -> bool:
    """Send a signal. False: it has already ended."""
    with suppress(ProcessLookupError):
        held = os.pidfd_open(identity.pid) if hasattr(os, "pidfd_open") else -1
        try:
            if not identity.alive:
                return False
            if number is signal.SIGKILL:
                os.killpg(os.getpgid(identity.pid), number)
            elif held >= 0:
                signal.pidfd_send_signal(held, number)
            else:
                os.kill(identity.pid, number)
            return True
        finally:
            if held >= 0:
                os.close(held)
    return False


def within(seconds: float, holds: Callable[[], bool]) -> bool:
    """Poll the condition; return whether it held within `seconds`."""
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(POLL_S)
    return True


def make(environ: Mapping[str, str]) -> "Local":
    return Local(environ)


class Local:
    name = "local"
    options: tuple[Option, ...] = ()
    own_ports = True

    def __init__(self, environ: Mapping[str, str], devices: Callable[[], Sequence[Device]] = find_devices) -> None:
        self._environ = environ
        self._home = home(environ)
        self._devices = devices

    def preflight(self, job: Job) -> None:
        if not contract.is_predictor_image(job.image):
            message = f"{job.image} is a container image, and the platform local runs processes of our own predictor"
            raise UsageError(message, "use --platform docker or --platform kubernetes")
        if job.model_path.startswith("/"):
            path = Path(job.model_path)
            if not path.exists():
                raise UsageError(f"model_path = {path}, which does not exist")
            if job.folder and not path.is_dir():
                raise UsageError(f"model_path = {path}, must be a directory for this network_arch")
        self._gpus(job)
        if job.isolation == "sandbox":
            self._sandbox(job, [], job.model_path)
        try:
            self._home.create()
            self._folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            message = f"logs cannot be kept in {self._folder}: {error.strerror}"
            raise PlatformError(message, "set PILOTLIGHT_HOME to a folder that you may write to") from None

    def start(self, job: Job) -> Entry:
        log, exit_file = self._files(job.id)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        command = ["/bin/sh", "-c", job.command]
        try:
            model = job.model_path
            if job.isolation and model.startswith("/"):  # files that an org can change
                shutil.rmtree(self._copy(job.id), ignore_errors=True)  # of an interrupted start
                model = str(copy_model(Path(model), self._copy(job.id), links_out=job.isolation == "sandbox"))
            variables = self._variables(job) | ({ENV_MODEL: model} if job.isolation == "data" else {})
            if job.isolation == "sandbox":
                plan = self._sandbox(job, command, model)
                self._cache(job.id).mkdir(mode=0o700, exist_ok=True)
                os.chown(self._cache(job.id), plan.uid, -1)
                command = sandbox.command(plan)
            elif job.closed:
                self._sockets(job.id).mkdir(mode=0o700, exist_ok=True)
            parent = shim.start(command, variables, self._home.root, descriptor, exit_file)
        finally:
            os.close(descriptor)
        # Reap the shim.
        threading.Thread(target=_reap, args=(parent.pid,), daemon=True).start()
        identity = _identity(parent.output) or Identity(parent.pid, "", 0)  # it ended at once: status reports how
        try:
            _wait_listening(identity, self._host(job), job.host_port)
        except BaseException:  # such as Ctrl-C: it is not registered yet
            end(identity)
            raise
        started = utc_now(zone="+00:00")
        url = f"{self._host(job)}/{job.host_port}" if job.closed else f"http://localhost:{job.host_port}"
        return Entry("local", job.network_arch, url, started, job.host_port, ":".join(map(str, identity)))

    def status(self, job_id: str, entry: Entry) -> PlatformStatus:
        log, exit_file = self._files(job_id)
        identity = _named(entry)
        alive = identity is not None and identity.alive  # before its log, which is complete once it has ended
        tail = tuple(secret_redaction.redact(line, self._environ) for line in _tail(log))
        name = f"process-{identity.pid}" if identity else ""
        if alive:
            return PlatformStatus("running", name, "", failed_event(tail), tail)
        if not log.exists():
            return PlatformStatus("gone", name, "", "it was stopped, or started on another machine", tail)
        ended = shim.read_exit(exit_file) or shim.Exit()
        reason = "the process ended" if ended.code is None else f"the process ended with exit code {ended.code}"
        if ended.signal:
            reason = f"the process was ended by {signal.Signals(ended.signal).name}"
        message = last_error(tail)
        return PlatformStatus("failed", name, "", f"{reason}: {message}" if message else reason, tail)

    def stop(self, job_id: str, entry: Entry) -> None:
        identity, (log, exit_file) = _named(entry) or _orphan(job_id), self._files(job_id)
        if identity and end(identity):
            # The shim writes the exit status a moment later, and would leave that file behind.
            within(shim.EXIT_FILE_TIMEOUT_S, lambda: shim.read_exit(exit_file) is not None)
        for path in (log, exit_file):
            path.unlink(missing_ok=True)
        shutil.rmtree(self._copy(job_id), ignore_errors=True)
        shutil.rmtree(self._sockets(job_id), ignore_errors=True)
        if self._cache(job_id).exists():  # it was in a sandbox
            shutil.rmtree(self._cache(job_id), ignore_errors=True)
            sandbox.remove_group(self._home, job_id)

    @contextmanager
    def open_route(self, job_id: str, entry: Entry) -> Iterator[str]:
        is_closed = unix_socket.is_unix(entry.host_url)
        yield entry.host_url if is_closed or not entry.host_port else f"http://{HOST}:{entry.host_port}"

    @property
    def _folder(self) -> Path:
        return self._home.root / "microservices"

    def _sandbox(self, job: Job, command: list[str], model: str) -> Plan:
        uid = sandbox.uid_of(job.host_port)  # ports are unique in a registry, so uids are
        return sandbox.plan(
            job.id, uid, (model, job.model_path), command, self._home, self._cache(job.id), self._environ
        )

    def _copy(self, job_id: str) -> Path:
        """Return the folder of the copy of an org's model, without links, which a sandbox does not follow."""
        return (self._folder / f"{job_id}.model").resolve()

    def _cache(self, job_id: str) -> Path:
        """Return the folder in which a sandbox has fetched models and its socket."""
        return self._folder / f"{job_id}.cache"

    def _sockets(self, job_id: str) -> Path:
        """Return the folder of the socket of a job without a sandbox."""
        return self._folder / f"{job_id}.socket"

    def _host(self, job: Job) -> str:
        """Return the host of its port. That of a closed job is a folder that no other user or sandbox can enter."""
        folder = self._cache(job.id) if job.isolation == "sandbox" else self._sockets(job.id)
        return f"{unix_socket.SCHEME}{folder}" if job.closed else HOST

    def _files(self, job_id: str) -> tuple[Path, Path]:
        """Return the paths of log and exit status."""
        if not _JOB_ID.fullmatch(job_id):
            raise UsageError(f"{job_id!r} is no job id")
        return self._folder / f"{job_id}.log", self._folder / f"{job_id}.exit"

    def _variables(self, job: Job) -> dict[str, str]:
        """Return the inherited environment, without other secrets and settings, and the job's variables."""
        inherited = {
            name: value
            for name, value in self._environ.items()
            if name not in secret_references.FORBIDDEN
            and not name.startswith((contract.ENV_SETTINGS_PREFIX, "PILOTLIGHT_"))
            and (name in job.secrets or not secret_redaction.is_secret(name))
        }
        own = {
            ENV_PYTHON: sys.executable, "PYTHONSAFEPATH": "1", ENV_HOST: HOST,
            contract.ENV_CACHE_DIR: str(self._home.cache),
        }  # fmt: skip
        if job.isolation == "sandbox":
            inherited = {
                name: value for name, value in inherited.items() if SANDBOXED.fullmatch(name) or name in job.secrets
            }
            own |= {contract.ENV_CACHE_DIR: sandbox.CACHE, "HOME": sandbox.CACHE}
        host = f"{unix_socket.SCHEME}{sandbox.CACHE}" if job.isolation == "sandbox" else self._host(job)
        listening = {ENV_PORT: str(job.host_port), **({ENV_HOST: host} if job.closed else {})}
        return {**inherited, **own, **self._gpus(job), **job.env, **listening}

    def _gpus(self, job: Job) -> dict[str, str]:
        """Return the variable that selects the least used GPUs; none without GPUs, where the model runs on CPUs."""
        devices = self._devices()
        if not devices or VISIBLE in job.env:
            return {}
        chosen, reason = allocate(devices, {}, job.num_gpus)
        if reason:
            raise PlatformError(f"num_gpus = {job.num_gpus}: it {reason}", "--num-gpus N")
        return {VISIBLE: ",".join(map(str, chosen))}


def _identity(output: int) -> Identity | None:
    """Return the identity of the process that the shim has started."""
    select([output], [], [], LISTEN_S)
    return identify(shim.read_pid(output))


def _wait_listening(identity: Identity, host: str, port: int) -> None:
    """Wait until it listens, within 0.1 s, before imports, or has ended. Until then the port is only claimed."""
    within(LISTEN_S, lambda: _connects(host, port) or not identity.alive)


def _connects(host: str, port: int) -> bool:
    try:
        if unix_socket.is_unix(host):
            unix_socket.connect(host, port).close()
        else:
            socket.create_connection((host, port), timeout=1.0).close()
    except OSError:
        return False
    return True


def _named(entry: Entry) -> Identity | None:
    """Return the identity in a registry entry; None if invalid."""
    pid, _, rest = (entry.platform_job_id or "").partition(":")
    boot, _, ticks = rest.partition(":")
    return Identity(int(pid), boot, int(ticks)) if pid.isdecimal() and ticks.isdecimal() else None


def _orphan(job_id: str) -> Identity | None:
    """Find the process of an interrupted start that was not registered, by the job id in its environment."""
    mark = f"TAO_API_JOB_ID={job_id}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            own = folder.stat().st_uid == os.getuid() and mark in (folder / "environ").read_bytes().split(b"\0")
            if own and b"pilotlight-shim" not in (folder / "cmdline").read_bytes().split(b"\0"):
                return identify(int(folder.name))
    return None


def _reap(pid: int) -> None:
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _tail(log: Path) -> tuple[str, ...]:
    with suppress(OSError):
        return tuple(last_lines(log, TAIL, max_bytes=65536))
    return ()
