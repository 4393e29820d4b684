"""Platform slurm: jobs by sbatch, squeue, sacct and scancel on a submit host.

A job listens on its node: on this machine on `host_port`; to another node a tunnel from `host_port` is opened with the
first request and held until the job is stopped.
"""

import os
import socket
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pilotlight.errors import PlatformError, TimedOut, UsageError
from pilotlight.k8s.timestamps import utc_now
from pilotlight.microservices.platforms import Option
from pilotlight.microservices.platforms.commands import set_secrets, validate_job
from pilotlight.microservices.platforms.host_ports import ENV_PORT, check_free, is_own, listening
from pilotlight.microservices.registry.container_command import ENV_PYTHON
from pilotlight.microservices.registry.records import Entry, Job, PlatformStatus
from pilotlight.microservices.registry.registry_file import registry
from pilotlight.targets.programs import Programs
from pilotlight.targets.secret_redaction import redact
from pilotlight.targets.slurm.queue import (
    ACCOUNT,
    QUEUE,
    UNKNOWN_JOB,
    Queued,
    fields,
    read_account,
    read_queue,
)
from pilotlight.targets.slurm.script import (
    INHERITED,
    PORTS,
    SlurmJob,
    container_kind,
    port_check,
    sbatch_arguments,
    script,
)
from pilotlight.targets.slurm.ssh_tunnel import Tunnel, Tunnels

PARTITION: Final = "--format=%a|%G"
TAIL: Final = 50
POLL_S: Final = 0.5
BEGIN_S: Final = 60.0  # a request waits this long for a job that is about to start
STOP_S: Final = 120.0  # above Slurm's KillWait, by default 30 s
GONE: Final = "Slurm knows no such job any more"


def seen(queued: Queued, tail: tuple[str, ...] = ()) -> PlatformStatus:
    """Return the platform status: pod_name is the node, the reason has Slurm's state: PENDING (Resources)."""
    reason = "" if queued.meaning == "running" else queued.explanation
    return PlatformStatus(queued.meaning, queued.host, "", reason, tail)


def slurm_job(job: Job, options: Mapping[str, str], log: str, gpus: bool, names: Iterable[str]) -> SlurmJob:
    """Return the job as Slurm gets it; `names` are variables with values in sbatch's environment."""
    own = is_own(job)
    container = container_kind(job.options.get("container", ""), job.image, own=own)
    python = {ENV_PYTHON: sys.executable} if container == "none" else {}
    return SlurmJob(
        job.id, log, ("/bin/sh", "-c", job.command), options, image=job.image, container=container,
        variables={**job.env, **(listening(job) if own else {}), **python}, exported=tuple(names),
        gpus=job.num_gpus if gpus else 0, comment=comment(job), prologue=_ports(job),
    )  # fmt: skip


def comment(job: Job) -> str:
    """Return the job's comment with its ports, on the submit host and on other nodes; read back from the queue."""
    return f"port={job.host_port}/job" if is_own(job) else f"port={job.port}/{job.port}"


def port_of(text: str, slurm_id: str, here: bool) -> int:
    """Return the port in a job's comment; 0 for another comment."""
    local, _, elsewhere = text.removeprefix("port=").partition("/")
    word = local if here else elsewhere
    return PORTS.start + int(slurm_id) % len(PORTS) if word == "job" else int(word) if word.isdecimal() else 0


def _ports(job: Job) -> str:
    if not is_own(job):
        return port_check(str(job.port))
    number = f"$(({PORTS.start} + SLURM_JOB_ID % {len(PORTS)}))"
    port = f'$([ "$(uname -n)" = "$SLURM_SUBMIT_HOST" ] && echo {job.host_port} || echo {number})'
    return f'{port_check(port)}export {ENV_PORT}="$port"\n'


def about_to_begin(queued: Queued) -> bool:
    """Whether the scheduler has not yet considered it: it gives a reason to every job that it leaves queued."""
    return queued.meaning == "pending" and not queued.reason


def has_gpus(text: str) -> bool | None:
    """Parse `sinfo PARTITION`; None: no such partition."""
    lines = [line.partition("|") for line in text.splitlines() if "|" in line]
    return any(gres.startswith("gpu") or ",gpu" in gres for _, _, gres in lines) if lines else None


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
        script(self._job(validate_job(job)))
        check_free(job)

    def start(self, job: Job) -> Entry:
        submitted = self._job(validate_job(job))
        programs = self._programs.redacting(job.secrets)
        self._logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        words, hint = sbatch_arguments(submitted), "sinfo says what there is"
        printed = programs.run_checked(words, script(submitted), hint=hint)
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
        while queued is not None and about_to_begin(queued) and time.monotonic() < deadline:
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
            self._tunnels.open(job_id, Tunnel(queued.host, ((entry.host_port or 0, port),)))
            yield entry.host_url

    def _find(self, job_id: str, entry: Entry) -> Queued | None:
        """Find the job in the queue, then in the accounting database, checked by name since Slurm reuses ids.

        A job without a recorded id is found by name, in the queue only.
        """
        number = entry.platform_job_id
        chosen = ["--states=all", f"--jobs={number}"] if number else [f"--name={job_id}"]
        done = self._programs.run(["squeue", "--noheader", *chosen, QUEUE])
        if done.code and UNKNOWN_JOB not in done.err:
            raise PlatformError(f"squeue failed: {done.summary}", "scontrol ping says whether the controller answers")
        queued = next(iter(read_queue(done.out)), None)
        if queued is None and number:
            words = ["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={number}", ACCOUNT]
            past = self._programs.run(words)
            account = read_account(past.out) if past.code == 0 else None
            queued = account[0] if account else None
        return queued if queued is not None and queued.name == job_id else None

    def _is_here(self, node: str) -> bool:
        """Return whether the node is this machine, by NodeHostName: NodeName may be any alias."""
        node_fields = fields(self._programs.run_checked(["scontrol", "--oneliner", "show", "node", node]))
        return _short(node_fields.get("NodeHostName", node)) == _short(socket.gethostname())

    def _job(self, job: Job) -> SlurmJob:
        partition, account = (self._needed(job, option) for option in self.options[:2])
        printed = self._programs.run_checked(["sinfo", "--noheader", f"--partition={partition}", PARTITION])
        gpus = has_gpus(printed)
        if gpus is None:
            there = " ".join(self._programs.run_checked(["sinfo", "--noheader", "--format=%R"]).split())
            raise UsageError(f"partition = {partition}: the cluster has no such partition", f"there are: {there}")
        options = {**job.options, "partition": partition, "account": account}
        inherited = [name for name in INHERITED if name in self._programs.environ]
        names = (*inherited, *set_secrets(job, self._programs.environ))
        return slurm_job(job, options, str(self._log(job.id)), gpus, names)

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
