"""Victim selection of GPU preemption: idle replicas that park for one with waiting requests. Pure.

Without preemption a request would wait until the idle service's scale-to-zero window is over.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from pilotlight.targets.local.supervisor.gpus import Holder


class GpuRequest(NamedTuple):
    """GPUs that a replica waits for: certain devices (a parked process cannot change them), or any `number`."""

    devices: tuple[int | str, ...]
    number: int = 0


def select_victims(
    wanted: GpuRequest, held: Mapping[str, Holder], devices: int, idle: Collection[str], leaving: Collection[str]
) -> list[str]:
    """Return the replicas to park; empty if that would not be enough or is not necessary.

    `devices`: number of GPUs of the machine; `leaving`: holders that are about to release theirs.
    """
    staying = {name: holder for name, holder in held.items() if name not in leaving}
    if wanted.devices:
        blocking = blockers(wanted.devices, staying)
        return blocking if all(name in idle for name in blocking) else []
    missing = wanted.number - (devices - sum(len(holder.devices) for holder in staying.values()))
    victims: list[str] = []
    for name in sorted(name for name in staying if name in idle):
        if missing <= 0:
            break
        victims.append(name)
        missing -= len(staying[name].devices)
    # All or nothing: a service must not lose its GPUs if the other still could not start.
    return victims if missing <= 0 else []


def blockers(devices: Collection[int | str], held: Mapping[str, Holder]) -> list[str]:
    return [name for name, holder in held.items() if set(holder.devices) & set(devices)]
