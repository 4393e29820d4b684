"""Parsers of squeue, sacct and sinfo, and mapping of Slurm's job states, with reasons. Pure."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from pilotlight.microservices.model import PlatformStatus, State

QUEUE: Final = "--format=%T|%B|%j|%k|%r"
ACCOUNT: Final = "--format=State,NodeList,JobName,Comment,ExitCode"
PARTITION: Final = "--format=%a|%G"

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
    """Return the platform status: pod_name is the node, pod_status Slurm's state and reason: PENDING (Resources)."""
    status = f"{queued.state} ({queued.reason})" if queued.reason else queued.state
    words = _REASONS.get(queued.reason.split(",")[0], "")
    meaning = queued.meaning
    said = "" if meaning == "running" else f"{status}: {words}" if words else status
    return PlatformStatus(meaning, queued.host, status, said, tail)


def has_gpus(text: str) -> bool | None:
    """Parse `sinfo PARTITION`; None: no such partition."""
    lines = [line.partition("|") for line in text.splitlines() if "|" in line]
    return any(gres.startswith("gpu") or ",gpu" in gres for _, _, gres in lines) if lines else None


def fields(line: str) -> Mapping[str, str]:
    """Parse `scontrol --oneliner show node`: NAME=VALUE pairs."""
    pairs = (word.partition("=") for word in line.split())
    return {name: value for name, equals, value in pairs if equals}
