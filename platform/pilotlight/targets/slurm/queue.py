"""Jobs as squeue, sacct, scontrol and sinfo print them. Pure; launcher.py runs these programs.

queue.yaml has what reasons mean.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final, Literal, NamedTuple

from msgspec import yaml

from pilotlight.targets.local.supervisor.shim import Exit

State = Literal["pending", "running", "failed", "stopped"]
QUEUE: Final = "--format=%i|%T|%B|%j|%k|%r"  # the reason last: it may have any character
ACCOUNT: Final = "--format=JobID,State,NodeList,JobName,Comment,ExitCode"
_STATES: Final[Mapping[str, State]] = {
    "PENDING": "pending", "CONFIGURING": "pending", "REQUEUED": "pending", "REQUEUE_FED": "pending",
    "REQUEUE_HOLD": "pending", "SPECIAL_EXIT": "pending", "SUSPENDED": "pending", "STOPPED": "pending",
    "RUNNING": "running", "RESIZING": "running", "SIGNALING": "running", "STAGE_OUT": "stopped",
    "COMPLETING": "stopped", "COMPLETED": "stopped", "CANCELLED": "stopped", "REVOKED": "stopped",
}  # fmt: skip  # the rest, such as FAILED, TIMEOUT and NODE_FAIL, is failed
# Ends that say nothing about what the job ran.
_LOST: Final = frozenset({"NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "REVOKED"})
_NEVER: Final = "it will not start"


class Queued(NamedTuple):
    """A job in the queue, or in the accounting database."""

    id: str
    state: str
    host: str = ""  # "": not assigned yet
    name: str = ""
    comment: str = ""
    reason: str = ""

    @property
    def meaning(self) -> State:
        return _STATES.get(self.state, "failed")

    @property
    def over(self) -> bool:
        """Whether it has ended; a COMPLETING job may still have processes."""
        return self.meaning not in ("pending", "running") and self.state != "COMPLETING"

    @property
    def lost(self) -> bool:
        """Whether it ended with its node or for another job, through no fault of its own."""
        return self.state in _LOST

    @property
    def status(self) -> str:
        """Slurm's state and reason: PENDING (Resources)."""
        return f"{self.state} ({self.reason})" if self.reason else self.state

    @property
    def explanation(self) -> str:
        """Status, and what the reason means."""
        reason = self.reason.split(",")[0]
        words = _reasons().get(reason) or _limit(reason)
        return f"{self.status}: {words}" if words else self.status


@cache
def _reasons() -> dict[str, str]:
    return yaml.decode(Path(__file__).with_suffix(".yaml").read_bytes(), type=dict[str, str])


def _limit(reason: str) -> str:
    """Describe a limit such as QOSGrpCpuLimit or AssocMaxWallDurationPerJobLimit; empty: the reason is another."""
    if not reason.startswith(("Assoc", "QOS")):
        return ""
    whose = "account" if reason.startswith("Assoc") else "quality of service"
    if "PerJob" in reason or reason.endswith("NotSatisfied"):
        return f"{_NEVER}: it requests more or less than your {whose} allows per job"
    return f"it waits for other jobs: your {whose} has reached its limit"


def read_queue(text: str) -> list[Queued]:
    """Parse the lines of `squeue QUEUE`."""
    jobs = []
    for line in text.splitlines():
        if "|" in line:
            number, state, host, name, comment, reason = (line.split("|", 5) + [""] * 5)[:6]
            node = "" if host in ("n/a", "N/A", "(null)") else host
            note = "" if comment == "(null)" else comment
            jobs.append(Queued(number, state, node, name, note, "" if reason == "None" else reason))
    return jobs


def read_account(text: str) -> tuple[Queued, Exit] | None:
    """Parse the line of `sacct ACCOUNT`. A state may have a suffix: `CANCELLED by 1000`."""
    queued = next(iter(read_queue(text)), None)
    if queued is None:
        return None
    exited = read_exit(queued.reason)
    reason = f"exit code {exited.code}" if exited.code else f"signal {exited.signal}" if exited.signal else ""
    return queued._replace(state=queued.state.split()[0], reason=reason), exited


def read_exit(text: str) -> Exit:
    """Parse an ExitCode of sacct or scontrol, CODE:SIGNAL."""
    code, _, signal = text.partition(":")
    if not (code.isdecimal() and signal.isdecimal()):
        return Exit()
    return Exit(signal=int(signal)) if int(signal) else Exit(int(code))


def fields(line: str) -> Mapping[str, str]:
    """Parse `scontrol --oneliner show`: NAME=VALUE pairs."""
    pairs = (word.partition("=") for word in line.split())
    return {name: value for name, equals, value in pairs if equals}
