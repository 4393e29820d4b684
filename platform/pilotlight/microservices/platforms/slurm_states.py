"""What squeue, sacct and sinfo print, as values; states of Slurm as states of ours, with the reason in words. Pure."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from pilotlight.microservices.model import Seen, State

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
    host: str = ""  # "": none was given to it yet
    name: str = ""
    comment: str = ""
    reason: str = ""

    @property
    def meaning(self) -> State:
        return _STATES.get(self.state, "failed")

    @property
    def about_to_begin(self) -> bool:
        """Slurm gives a reason to every job that it looked at and left in the queue."""
        return self.meaning == "pending" and not self.reason

    @property
    def over(self) -> bool:
        """Nothing of it runs or will run. A job that completes may still have processes."""
        return self.meaning not in ("pending", "running") and self.state != "COMPLETING"


def read_queue(text: str) -> Queued | None:
    """The one line that `squeue QUEUE` prints, or none."""
    lines = [line for line in text.splitlines() if "|" in line]
    if not lines:
        return None
    state, host, name, comment, reason = (lines[0].split("|", 4) + [""] * 4)[:5]
    return Queued(
        state, "" if host in ("n/a", "N/A", "(null)") else host, name, comment, "" if reason == "None" else reason
    )


def read_account(text: str) -> Queued | None:
    """The one line that `sacct ACCOUNT` prints. A state may go on: `CANCELLED by 1000`."""
    found = read_queue(text)
    if found is None:
        return None
    code = "" if found.reason.startswith("0:0") else f"exit code {found.reason.partition(':')[0]}"
    return found._replace(state=found.state.split()[0], reason=code)


def seen(queued: Queued, tail: tuple[str, ...] = ()) -> Seen:
    """The pod's name is that of the node; its status Slurm's word with the reason: PENDING (Resources)."""
    status = f"{queued.state} ({queued.reason})" if queued.reason else queued.state
    words = _REASONS.get(queued.reason.split(",")[0], "")
    meaning = queued.meaning
    said = "" if meaning == "running" else f"{status}: {words}" if words else status
    return Seen(meaning, queued.host, status, said, tail)


def has_gpus(text: str) -> bool | None:
    """Of `sinfo PARTITION`; None where there is no such partition."""
    lines = [line.partition("|") for line in text.splitlines() if "|" in line]
    return any(gres.startswith("gpu") or ",gpu" in gres for _, _, gres in lines) if lines else None


def fields(line: str) -> Mapping[str, str]:
    """`scontrol --oneliner show node`: words of NAME=VALUE."""
    pairs = (word.partition("=") for word in line.split())
    return {name: value for name, equals, value in pairs if equals}
