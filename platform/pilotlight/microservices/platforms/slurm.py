"""Platform slurm: jobs by sbatch, squeue, sacct and scancel on a submit host, with parsers of their output.

A job listens on its node: on this machine on `host_port`; to another node a tunnel from `host_port` is opened with the
first request and held until the job is stopped.
"""

import os
import socket
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from pilotlight.errors import PlatformError, TimedOut, UsageError
from pilotlight.k8s.timestamps import utc_now
from pilotlight.microservices.platforms import Option
from pilotlight.microservices.platforms.commands import set_secrets, validate_job
from pilotlight.microservices.platforms.host_ports import check_free
from pilotlight.microservices.platforms.slurm_script import INHERITED, SlurmTarget, port_of, sbatch_arguments, script
from pilotlight.microservices.platforms.ssh_tunnel import Tunnel, Tunnels
from pilotlight.microservices.registry.records import Entry, Job, PlatformStatus, State
from pilotlight.microservices.registry.registry_file import registry
from pilotlight.targets.programs import Programs
from pilotlight.targets.secret_redaction import redact

QUEUE: Final = "--format=%T|%B|%j|%k|%r"
ACCOUNT: Final = "--format=State,NodeList,JobName,Comment,ExitCode"
PARTITION: Final = "--format=%a|%G"
TAIL: Final = 50
POLL_S: Final = 0.5
BEGIN_S: Final = 60.0  # a request waits this long for a job that is about to start
STOP_S: Final = 120.0  # above Slurm's KillWait, by default 30 s
UNKNOWN: Final = "Invalid job id"
GONE: Final = "Slurm knows no such job any more"
_STATES: Final[Mapping[str, State]] = {
    "PENDING": "pending", "CONFIGURING": "pending", "REQUEUED": "pending", "REQUEUE_FED": "pending",
    "REQUEUE_HOLD": "pending", "SPECIAL_EXIT": "pending", "SUSPENDED": "pending", "STOPPED": "pending",
    "RUNNING": "running", "RESIZING": "running", "SIGNALING": "running", "STAGE_OUT": "stopped",
    "COMPLETING": "stopped", "COMPLETED": "stopped", "CANCELLED": "stopped", "REVOKED": "stopped",
}  # fmt: skip  # the rest, such as FAILED, TIMEOUT and NODE_FAIL, is failed
# Why a job waits or ended, where Slurm's own word is not enough.
_REASONS: Final[Mapping[str, str]] = {
    "Resources": "no node of the partition has enough free now",
    "Priority": "other jobs of the partition come first",
    "Dependency": "it waits for another job",
    "PartitionDown": "the partition takes no jobs",
    "PartitionInactive": "the partition is inactive",
    "PartitionNodeLimit": "it asks for more nodes than the partition allows",
    "PartitionTimeLimit": "its time limit is above the partition's: set time",
    "BadConstraints": "no node can ever meet what it asks for",
    "ReqNodeNotAvail": "a node that it needs is down, drained or reserved",
    "AssocGrpGRES": "the account has all its GPUs in use",
    "QOSMaxJobsPerUserLimit": "you run as many jobs as your quality of service allows",
    "QOSMaxGRESPerUser": "you use as many GPUs as your quality of service allows",
    "InvalidAccount": "the account may not use this partition: set account",
    "JobHeldUser": "it is held: scontrol release lets it go",
    "JobHeldAdmin": "an administrator holds it",
    "launch failed requeued held": "the node could not start it: ask its administrator",
    "NonZeroExitCode": "its command ended with an error",
    "TimeLimit": "it ran as long as it may: set time",
    "OutOfMemory": "it used more memory than it may",
    "NodeDown": "its node failed",
}


class Queued(NamedTuple):
    state: str
    host: str = ""  # "": not assigned yet
    name: str = ""
    comment: str = ""
    reason: str = ""

    @property
    def meaning(self) -> State:
        return _STATES.get(self.state, "failed")

    @property
    def about_to_begin(self) -> bool:
        """Whether the scheduler has not yet considered it: it gives a reason to every job that it leaves queued."""
        return self.meaning == "pending" and not self.reason

    @property
    def over(self) -> bool:
        """Whether it has ended; a COMPLETING job may still have processes."""
        return self.meaning not in ("pending", "running") and self.state != "COMPLETING"


def read_queue(text: str) -> Queued | None:
    """Parse the line of `squeue QUEUE`; None if empty."""
    lines = [line for line in text.splitlines() if "|" in line]
    if not lines:
        return None
    state, host, name, comment, reason = (lines[0].split("|", 4) + [""] * 4)[:5]
    return Queued(
        state, "" if host in ("n/a", "N/A", "(null)") else host, name, comment, "" if reason == "None" else reason
    )


def read_account(text: str) -> Queued | None:
    """Parse the line of `sacct ACCOUNT`. A state may have a suffix: `CANCELLED by 1000`."""
    queued = read_queue(text)
    if queued is None:
        return None
    code = "" if queued.reason.startswith("0:0") else f"exit code {queued.reason.partition(':')[0]}"
    return queued._replace(state=queued.state.split()[0], reason=code)


def seen(queued: Queued, tail: tuple[str, ...] = ()) -> PlatformStatus:
    """Return the platform status: pod_name is the node, the reason has Slurm's state: PENDING (Resources)."""
    status = f"{queued.state} ({queued.reason})" if queued.reason else queued.state
    words = _REASONS.get(queued.reason.split(",")[0], "")
    meaning = queued.meaning
    said = "" if meaning == "running" else f"{status}: {words}" if words else status
    return PlatformStatus(meaning, queued.host, "", said, tail)


def has_gpus(text: str) -> bool | None:
    """Parse `sinfo PARTITION`; None: no such partition."""
    lines = [line.partition("|") for line in text.splitlines() if "|" in line]
    return any(gres.startswith("gpu") or ",gpu" in gres for _, _, gres in lines) if lines else None


def fields(line: str) -> Mapping[str, str]:
    """Parse `scontrol --oneliner show node`: NAME=VALUE pairs."""
    pairs = (word.partition("=") for word in line.split())
    return {name: value for name, equals, value in pairs if equals}


def make(environ: Mapping[str, str]) -> "Slurm":
    return Slurm(environ)


class Slurm:
    name = "slurm"
    own_ports = True
    options = (
        Option("partition", "partition that the job goes to", required=True, variables=("SLURM_PARTITION",)),
        Option("account", "account that is charged", required=True, variables=("SLURM_ACCOUNT",)),
        Option("container", "pyxis, enroot, apptainer or singularity; none runs our own predictor as it is installed"),
        Option("mounts", "folders of its machine that the container sees: /models:/models:ro, comma separated"),
        Option("time", "time limit, as sbatch takes it; otherwise the partition's"),
    )

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._programs = Programs(environ)
        path = registry(environ).path
        self._tunnels = Tunnels(path.with_name(path.name + ".tunnels"), environ)
        state = environ.get("XDG_STATE_HOME") or str(Path(environ.get("HOME") or "~").expanduser() / ".local/state")
        self._logs = Path(state).absolute() / "pilotlight" / "slurm"

    def preflight(self, job: Job) -> None:
        target = self._target(validate_job(job))
        script(job, target)
        check_free(job)

    def start(self, job: Job) -> Entry:
        target = self._target(validate_job(job))
        programs = self._programs.redacting(job.secrets)
        self._logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        inherited = [name for name in INHERITED if name in programs.environ]
        names = (*inherited, *set_secrets(job, programs.environ))
        printed = programs.run_checked(
            sbatch_arguments(job, target, names), script(job, target), hint="sinfo says what there is"
        )
        slurm_id = printed.strip().partition(";")[0]
        started = utc_now("seconds", "+00:00")
        url = f"http://localhost:{job.host_port}"
        return Entry("slurm", job.network_arch, url, started, job.host_port, platform_job_id=slurm_id)

    def status(self, job_id: str, entry: Entry) -> PlatformStatus:
        queued = self._find(job_id, entry)
        return seen(queued, self._tail(job_id)) if queued else PlatformStatus("gone", reason=GONE)

    def stop(self, job_id: str, entry: Entry) -> None:
        """Cancel the job, checked by name since Slurm reuses ids, and wait until its processes have ended."""
        words = ["scancel", f"--jobname={job_id}", *filter(None, [entry.platform_job_id])]
        queued, deadline = self._find(job_id, entry), time.monotonic() + STOP_S
        output = self._programs.run(words).summary if queued is not None and not queued.over else ""
        while queued is not None and not queued.over:
            if time.monotonic() > deadline:
                raise TimedOut(
                    f"job {entry.platform_job_id or job_id} is still {queued.state}: {output}", " ".join(words)
                )
            time.sleep(POLL_S)
            queued = self._find(job_id, entry)
        self._tunnels.close(job_id)
        self._log(job_id).unlink(missing_ok=True)

    @contextmanager
    def open_route(self, job_id: str, entry: Entry) -> Iterator[str]:
        """Yield the URL. Waits for a job that is about to start, since its node is known only then."""
        queued, deadline = self._find(job_id, entry), time.monotonic() + BEGIN_S
        while queued is not None and queued.about_to_begin and time.monotonic() < deadline:
            time.sleep(POLL_S)
            queued = self._find(job_id, entry)
        if queued is None or queued.meaning != "running" or not queued.host:
            reason = seen(queued).reason if queued else GONE
            raise PlatformError(f"{job_id} cannot be asked: {reason}", f"platformctl microservice status {job_id}")
        here = self._is_here(queued.host)
        port = port_of(queued.comment, str(entry.platform_job_id), here)
        if here:
            yield f"http://localhost:{port}"
        else:
            self._tunnels.open(job_id, Tunnel(entry.host_port or 0, queued.host, port))
            yield entry.host_url

    def _find(self, job_id: str, entry: Entry) -> Queued | None:
        """Find the job in the queue, then in the accounting database, checked by name since Slurm reuses ids.

        A job without a recorded id is found by name, in the queue only.
        """
        number = entry.platform_job_id
        chosen = ["--states=all", f"--jobs={number}"] if number else [f"--name={job_id}"]
        done = self._programs.run(["squeue", "--noheader", *chosen, QUEUE])
        if done.code and UNKNOWN not in done.err:
            raise PlatformError(f"squeue failed: {done.summary}", "scontrol ping says whether the controller answers")
        queued = read_queue(done.out)
        if queued is None and number:
            words = ["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={number}", ACCOUNT]
            past = self._programs.run(words)
            queued = read_account(past.out) if past.code == 0 else None
        return queued if queued is not None and queued.name == job_id else None

    def _is_here(self, node: str) -> bool:
        """Return whether the node is this machine, by NodeHostName: NodeName may be any alias."""
        node_fields = fields(self._programs.run_checked(["scontrol", "--oneliner", "show", "node", node]))
        return _short(node_fields.get("NodeHostName", node)) == _short(socket.gethostname())

    def _target(self, job: Job) -> SlurmTarget:
        partition, account = (self._needed(job, option) for option in self.options[:2])
        printed = self._programs.run_checked(["sinfo", "--noheader", f"--partition={partition}", PARTITION])
        gpus = has_gpus(printed)
        if gpus is None:
            there = " ".join(self._programs.run_checked(["sinfo", "--noheader", "--format=%R"]).split())
            raise UsageError(f"partition = {partition}: the cluster has no such partition", f"there are: {there}")
        return SlurmTarget(partition, account, str(self._log(job.id)), gpus, sys.executable)

    def _needed(self, job: Job, option: Option) -> str:
        candidates = (job.options.get(option.name), *(self._programs.environ.get(name) for name in option.variables))
        value = next(filter(None, candidates), "")
        if not value:
            raise UsageError(f"{option.name} is missing", f"give --{option.name}, or set {option.variables[0]}")
        return value

    def _log(self, job_id: str) -> Path:
        return self._logs / f"{job_id}.log"

    def _tail(self, job_id: str) -> tuple[str, ...]:
        try:
            with open(self._log(job_id), errors="replace") as file:
                lines = deque(file, TAIL)
        except OSError:
            return ()
        return tuple(redact(line.rstrip("\n"), self._programs.environ) for line in lines)


def _short(host: str) -> str:
    return host.partition(os.extsep)[0].lower()
