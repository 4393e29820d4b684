"""Jobs of a Slurm cluster, by sbatch, squeue, sacct and scancel on a machine from which jobs are submitted.

A job listens on its node. On this very machine that is `host_port`; on another node a tunnel leads from `host_port`
there, opened when the job is first asked and held until it is stopped.
"""

import os
import socket
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pilotlight.errors import PlatformError, TimedOut, UsageError
from pilotlight.microservices.model import Entry, Job, Seen
from pilotlight.microservices.platforms import Option
from pilotlight.microservices.platforms.own_predictor import check_free
from pilotlight.microservices.platforms.programs import Programs, checked, set_secrets
from pilotlight.microservices.platforms.slurm_script import KEPT, Place, batch_words, port_of, script
from pilotlight.microservices.platforms.slurm_states import (
    ACCOUNT,
    PARTITION,
    QUEUE,
    Queued,
    fields,
    has_gpus,
    read_account,
    read_queue,
    seen,
)
from pilotlight.microservices.platforms.tunnels import Tunnel, Tunnels
from pilotlight.microservices.registry import registry
from pilotlight.microservices.secrets import redacted

TAIL: Final = 50
POLL_S: Final = 0.5
BEGIN_S: Final = 60.0  # what a request waits for a job that is about to begin
STOP_S: Final = 120.0  # above Slurm's KillWait, which is 30 s where nobody has set it
UNKNOWN: Final = "Invalid job id"


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
        place = self._place(checked(job))
        script(job, place)
        check_free(job)

    def start(self, job: Job) -> Entry:
        place = self._place(checked(job))
        programs = self._programs.knowing(job)
        self._logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        kept = [name for name in KEPT if name in programs.environ]
        names = (*kept, *set_secrets(job, programs.environ))
        printed = programs.tell(batch_words(job, place, names), script(job, place), hint="sinfo says what there is")
        slurm_id = printed.strip().partition(";")[0]
        started = datetime.now(UTC).isoformat(timespec="seconds")
        url = f"http://localhost:{job.host_port}"
        return Entry("slurm", job.network_arch, url, started, job.host_port, platform_job_id=slurm_id)

    def look(self, job_id: str, entry: Entry) -> Seen:
        found = self._find(job_id, entry)
        return seen(found, self._tail(job_id)) if found else Seen("gone", reason="Slurm knows no such job any more")

    def stop(self, job_id: str, entry: Entry) -> None:
        """Only a job of this name is cancelled: numbers come again. Returns when its processes have ended."""
        words = ["scancel", f"--jobname={job_id}", *filter(None, [entry.platform_job_id])]
        found, deadline = self._find(job_id, entry), time.monotonic() + STOP_S
        said = self._programs.ask(words).said if found is not None and not found.over else ""
        while found is not None and not found.over:
            if time.monotonic() > deadline:
                raise TimedOut(f"job {entry.platform_job_id or job_id} is still {found.state}: {said}", " ".join(words))
            time.sleep(POLL_S)
            found = self._find(job_id, entry)
        self._tunnels.close(job_id)
        self._log(job_id).unlink(missing_ok=True)

    @contextmanager
    def way(self, job_id: str, entry: Entry) -> Iterator[str]:
        """Where it runs is known when it has left the queue: waits while Slurm has not said why it does not."""
        found, deadline = self._find(job_id, entry), time.monotonic() + BEGIN_S
        while found is not None and found.about_to_begin and time.monotonic() < deadline:
            time.sleep(POLL_S)
            found = self._find(job_id, entry)
        if found is None or found.meaning != "running" or not found.host:
            said = seen(found).reason if found else "Slurm knows no such job any more"
            raise PlatformError(f"{job_id} cannot be asked: {said}", f"platformctl microservice status {job_id}")
        here = self._is_here(found.host)
        port = port_of(found.comment, str(entry.platform_job_id), here)
        if here:
            yield f"http://localhost:{port}"
        else:
            self._tunnels.open(job_id, Tunnel(entry.host_port or 0, found.host, port))
            yield entry.host_url

    def _find(self, job_id: str, entry: Entry) -> Queued | None:
        """Asks the queue, then the accounts, where a cluster keeps them; a job of another name is not ours. One whose
        number nobody has noted is found by its name, while it lives: its name may have been another's before it."""
        number = entry.platform_job_id
        chosen = ["--states=all", f"--jobs={number}"] if number else [f"--name={job_id}"]
        done = self._programs.ask(["squeue", "--noheader", *chosen, QUEUE])
        if done.code and UNKNOWN not in done.err:
            raise PlatformError(f"squeue failed: {done.said}", "scontrol ping says whether the controller answers")
        found = read_queue(done.out)
        if found is None and number:
            words = ["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={number}", ACCOUNT]
            past = self._programs.ask(words)
            found = read_account(past.out) if past.code == 0 else None
        return found if found is not None and found.name == job_id else None

    def _is_here(self, node: str) -> bool:
        """NodeName may be any name; NodeHostName is what the node calls itself."""
        told = fields(self._programs.tell(["scontrol", "--oneliner", "show", "node", node]))
        return _short(told.get("NodeHostName", node)) == _short(socket.gethostname())

    def _place(self, job: Job) -> Place:
        partition, account = (self._needed(job, option) for option in self.options[:2])
        printed = self._programs.tell(["sinfo", "--noheader", f"--partition={partition}", PARTITION])
        gpus = has_gpus(printed)
        if gpus is None:
            there = " ".join(self._programs.tell(["sinfo", "--noheader", "--format=%R"]).split())
            raise UsageError(f"partition = {partition}: the cluster has no such partition", f"there are: {there}")
        return Place(partition, account, str(self._log(job.id)), gpus, sys.executable)

    def _needed(self, job: Job, option: Option) -> str:
        told = (job.options.get(option.name), *(self._programs.environ.get(name) for name in option.variables))
        value = next(filter(None, told), "")
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
        return tuple(redacted(line.rstrip("\n"), self._programs.environ) for line in lines)


def _short(host: str) -> str:
    return host.partition(os.extsep)[0].lower()
