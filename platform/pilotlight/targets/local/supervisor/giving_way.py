"""Whose GPUs go to a replica that is asked and waits for some: those of idle ones that park. Pure.

Without it a request would wait until the other's autoscaler has seen its whole window pass without a request.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from pilotlight.targets.local.supervisor.gpus import Holder


class Wanted(NamedTuple):
    """What a replica waits for: the very devices that its process knows, or any so many."""

    devices: tuple[int | str, ...]
    number: int = 0


def giving_way(
    wanted: Wanted, held: Mapping[str, Holder], devices: int, idle: Collection[str], leaving: Collection[str]
) -> list[str]:
    """Replicas that are to park; none where that would not be enough, or need not be.

    `devices`: how many the machine has; `leaving`: holders that are on their way out already.
    """
    staying = {name: holder for name, holder in held.items() if name not in leaving}
    if wanted.devices:
        blocking = blockers(wanted.devices, staying)
        return blocking if all(name in idle for name in blocking) else []
    missing = wanted.number - (devices - sum(len(holder.devices) for holder in staying.values()))
    given: list[str] = []
    for name in sorted(name for name in staying if name in idle):
        if missing <= 0:
            break
        given.append(name)
        missing -= len(staying[name].devices)
    return given if missing <= 0 else []


def blockers(devices: Collection[int | str], held: Mapping[str, Holder]) -> list[str]:
    return [name for name, holder in held.items() if set(holder.devices) & set(devices)]
