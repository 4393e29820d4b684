"""GPUs of this machine: whole devices, each allocated to one replica; preemption and parking free them for others.

A parked predictor has moved its models to host memory and keeps its process (docs/how-to/gpus.md). Victim selection and
the memory budget are pure; the supervisor acts on them.
"""

import asyncio
import os
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from pilotlight.targets.local.supervisor.replica_record import Replica
from pilotlight.wire.http_client import LoopbackResponse, request

PARK_S: Final = 120.0  # the first parking pins host memory of the size of the weights
STATUS_S: Final = 5.0
BUSY: Final = 503
RETRY_S: Final = 0.1
MEMORY_SHARE: Final = 0.25  # of the machine's memory, for all parked replicas together


class Device(NamedTuple):
    """GPU. `id` is its CUDA_VISIBLE_DEVICES entry; `used_bytes` includes use from outside the platform."""

    id: int | str
    used_bytes: int = 0


class Holder(NamedTuple):
    service: str  # namespace/name
    devices: tuple[int | str, ...]


def allocate(devices: Sequence[Device], held: Mapping[str, Holder], count: int) -> tuple[tuple[int | str, ...], str]:
    """Return the devices, least used first, or the reason why there are none."""
    if count > len(devices):
        available = f"this machine has {len(devices)}" if devices else "this machine has none"
        return (), f"needs {count} GPU{'s' if count > 1 else ''}, but {available}"
    taken = {device for holder in held.values() for device in holder.devices}
    free = sorted((device for device in devices if device.id not in taken), key=lambda device: device.used_bytes)
    if len(free) >= count:
        return tuple(device.id for device in free[:count]), ""
    holders = ", ".join(sorted({holder.service for holder in held.values()}))
    what = "a GPU" if count == 1 else f"{count} GPUs"
    return (), f"waiting for {what} held by {holders} ({len(taken)} of {len(devices)} in use)"


@dataclass
class GpuAllocator:
    """GPU holders by replica. Devices are listed when the first replica needs one."""

    find: Callable[[], Sequence[Device]]
    held: dict[str, Holder] = field(default_factory=dict)
    count: int = 0  # devices of the machine, as last listed

    def allocate(self, replica: str, service: str, count: int) -> tuple[tuple[int | str, ...], str]:
        if count == 0:
            return (), ""
        devices = self.find()
        self.count = len(devices)
        chosen, reason = allocate(devices, self.held, count)
        if chosen:
            self.held[replica] = Holder(service, chosen)
        return chosen, reason

    @property
    def free(self) -> int:
        self.count = self.count or len(self.find())
        return self.count - sum(len(holder.devices) for holder in self.held.values())

    def reallocate(self, replica: str, service: str, devices: tuple[int | str, ...]) -> str:
        """Take back the devices that a parked process was started with; return why it must wait, or nothing."""
        others = {
            holder.service
            for name, holder in self.held.items()
            if name != replica and set(holder.devices) & set(devices)
        }
        if others:
            return f"parked, and waiting for its GPU held by {', '.join(sorted(others))}"
        self.adopt(replica, service, devices)
        return ""

    def adopt(self, replica: str, service: str, devices: tuple[int | str, ...]) -> None:
        """Record the devices of a replica that already uses them."""
        if devices:
            self.held[replica] = Holder(service, devices)

    def release(self, replica: str) -> bool:
        return self.held.pop(replica, None) is not None


def find_devices() -> Sequence[Device]:
    """Return NVML's devices within this process's CUDA_VISIBLE_DEVICES; none without NVML."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = None if visible is None else [name.strip() for name in visible.split(",")]
    return [device for device, uuid in _nvml() if names is None or str(device.id) in names or uuid in names]


def _nvml() -> list[tuple[Device, str]]:
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return [
            (Device(index, int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)), str(pynvml.nvmlDeviceGetUUID(handle)))
            for index, handle in enumerate(handles)
        ]
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()


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
    for name in sorted(name for name in staying if name in idle):  # any fixed order; idle times are not compared
        if missing <= 0:
            break
        victims.append(name)
        missing -= len(staying[name].devices)
    # All or nothing: a service must not lose its GPUs if the other still could not start.
    return victims if missing <= 0 else []


def blockers(devices: Collection[int | str], held: Mapping[str, Holder]) -> list[str]:
    return [name for name, holder in held.items() if set(holder.devices) & set(devices)]


class ParkResult(NamedTuple):
    """Result of parking: host memory in use, or the error."""

    host_bytes: int = 0
    error: str = ""


async def park(replica: Replica, token: str) -> ParkResult:
    """Park all ready models of a replica, one after the other; ensembles hold no GPU memory and are skipped."""
    send = partial(request, replica.port, host=replica.host, token=token)
    status = await send("/status", STATUS_S)
    if not status.ok or not _names(status, "READY", "PARKED"):
        return ParkResult(error=_error("/status", status))
    ensembles: set[str] = set()
    for name in _names(status, "READY"):
        path = f"/v2/repository/models/{quote(name, safe='')}/park"
        response = await _request_park(send, path)
        if not response.ok:
            config = await send(f"/v2/models/{quote(name, safe='')}/config", STATUS_S)
            if "ensemble_scheduling" not in config.json():
                return ParkResult(error=_error(path, response))
            ensembles.add(name)
    status = await send("/status", STATUS_S)
    awake = [name for name in _names(status, "READY") if name not in ensembles]
    if not status.ok or awake:
        return ParkResult(error=f"{', '.join(awake) or 'its state'} was not parked")
    return ParkResult(int(status.json().get("parked_bytes") or 0))


def _names(status: LoopbackResponse, *states: str) -> list[str]:
    rows = status.json().get("models") or ()
    return list(dict.fromkeys(str(row.get("name")) for row in rows if row.get("state") in states))


async def _request_park(send: "partial[Coroutine[Any, Any, LoopbackResponse]]", path: str) -> LoopbackResponse:
    """Retry while the model is busy: requests routed before the table changed are finished first."""
    until = monotonic() + PARK_S
    while True:
        response = await send(path, PARK_S, post=True)
        if response.status != BUSY or monotonic() > until:
            return response
        await asyncio.sleep(RETRY_S)


def _error(path: str, answer: LoopbackResponse) -> str:
    return str(answer.json().get("error") or f"{path} answered {answer.status or 'nothing'}")


def over_budget(replicas: Sequence[Replica], budget: int) -> list[Replica]:
    """Return the parked replicas to end so that the rest stays within `budget` bytes, longest parked first.

    A replica that is ready again still holds its host memory: it counts, but is not ended.
    """
    over, leaving = sum(replica.parked_bytes for replica in replicas) - budget, list[Replica]()
    for replica in sorted(replicas, key=lambda replica: replica.parked_at):
        if over <= 0:
            break
        if replica.parked_bytes and replica.state == "parked":
            leaving.append(replica)
            over -= replica.parked_bytes
    return leaving
