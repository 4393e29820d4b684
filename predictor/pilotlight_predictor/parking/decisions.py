"""What parking decides: who is idle, whether host memory suffices, and whose copy makes room. Pure.

lot.py asks and acts. The clock and the machine's memory are arguments.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

LOOKS: Final = 4  # within the time after which an idle model parks
SHORTEST_S: Final = 0.05
LONGEST_S: Final = 5.0


class Look(NamedTuple):
    """What had been counted of a model when somebody looked, and since when that has not changed."""

    counted: int
    since: float


def look(before: Look | None, counted: int, busy: bool, now: float) -> Look:
    """A request that is still under way has not been counted, and yet its model is not idle."""
    if before is None or busy or counted != before.counted:
        return Look(counted, now)
    return before


def is_idle(seen: Look, after_s: float, now: float) -> bool:
    return now - seen.since >= after_s


def pause_s(after_s: float) -> float:
    """Between two looks: a model parks at most a quarter later than it might."""
    return min(max(after_s / LOOKS, SHORTEST_S), LONGEST_S)


class Copy(NamedTuple):
    """Host memory that one model's weights have."""

    name: str
    size: int
    parked: bool
    since: float  # when it was parked last


def make_room(copies: Sequence[Copy], needed: int, budget: int) -> list[str] | None:
    """Whose copies are to go, those that were parked longest ago first. None: it is not enough even so.

    Only of models that are awake: the copy of a parked one is all there is of it.
    """
    missing = sum(copy.size for copy in copies) + needed - budget
    given: list[str] = []
    for copy in sorted(copies, key=lambda copy: copy.since):
        if missing <= 0:
            break
        if not copy.parked and copy.size:
            given.append(copy.name)
            missing -= copy.size
    return given if missing <= 0 else None


def budget_bytes(told: str, machine: int, processes: int) -> int:
    """`told` as the setting has it: bytes, or a share of the machine's memory. Processes that serve alike share it."""
    whole = int(machine * float(told[:-1]) / 100) if told.endswith("%") else int(told)
    return whole // processes


def machine_bytes(meminfo: str, limits: Iterable[str]) -> int:
    """What the machine has, or this process may use if that is less: /proc/meminfo, and what `limit_files` say."""
    lines = (line.split() for line in meminfo.splitlines())
    total = next((int(words[1]) * 1024 for words in lines if words and words[0] == "MemTotal:"), 0)
    return min([total, *(int(limit) for limit in limits if limit.strip().isdigit())])


def limit_files(cgroup: str) -> list[str]:
    """Where /proc/self/cgroup says that limits of memory stand: of its group and of all that the group is in, down to
    the mount's root, which in a container is the container's own group."""
    files: list[str] = []
    for _, kinds, path in (line.split(":", 2) for line in cgroup.splitlines() if line.count(":") >= 2):
        if kinds and "memory" not in kinds.split(","):
            continue
        mount, name = ("/memory", "memory.limit_in_bytes") if kinds else ("", "memory.max")
        steps = [step for step in path.split("/") if step]
        groups = ["".join(f"/{step}" for step in steps[:depth]) for depth in range(len(steps), -1, -1)]
        files += [f"/sys/fs/cgroup{mount}{group}/{name}" for group in groups]
    return files
