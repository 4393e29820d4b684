"""Parking decisions: which host copies to drop to stay within the memory budget.

Pure: the clock and the machine's memory are arguments. The pool acts on them.
"""

from collections.abc import Sequence
from typing import NamedTuple


class HostCopy(NamedTuple):
    """Host memory that holds one model's weights."""

    name: str
    size: int
    parked: bool
    since: float  # when the model was parked last


def copies_to_drop(copies: Sequence[HostCopy], needed: int, budget: int) -> list[str] | None:
    """Names of the copies to drop for `needed` bytes, least recently parked first; None if that is not enough.

    Only copies of awake models: that of a parked model is the only one.
    """
    missing = sum(copy.size for copy in copies) + needed - budget
    dropped: list[str] = []
    for copy in sorted(copies, key=lambda copy: copy.since):
        if missing <= 0:
            break
        if not copy.parked and copy.size:
            dropped.append(copy.name)
            missing -= copy.size
    return dropped if missing <= 0 else None


def budget_bytes(setting: str, machine: int, processes: int) -> int:
    """Budget of one of `processes` workers; `setting` is in bytes or a percentage of the machine's memory."""
    total = int(machine * float(setting[:-1]) / 100) if setting.endswith("%") else int(setting)
    return total // processes
