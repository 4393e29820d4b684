"""GPUs of this machine: who holds memory of which, who waits for some, and parking, which frees it for others.

scaling/gpu_admission.py decides, and the supervisor acts on it. A parked predictor has moved its models to host memory
and keeps its process (docs/how-to/gpus.md).
"""

import asyncio
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from pilotlight.targets.local.scaling import gpu_admission
from pilotlight.targets.local.scaling.gpu_admission import Admission, Waiter
from pilotlight.targets.local.supervisor.replica_record import Replica
from pilotlight.wire.http_client import LoopbackResponse, request

PARK_S: Final = 120.0  # the first parking pins host memory of the size of the weights
STATUS_S: Final = 5.0
BUSY: Final = 503
RETRY_S: Final = 0.1
LINK_BYTES_PER_S: Final = 10e9  # from pinned memory to a GPU, at least (PCIe 3.0 x16: 12 GB/s)
MEMORY_SHARE: Final = 0.25  # of the machine's memory, for all parked replicas together


class Device(NamedTuple):
    """GPU. `id` is its CUDA_VISIBLE_DEVICES entry; `used_bytes` includes use from outside the platform."""

    id: int | str
    used_bytes: int = 0
    memory: int = 0  # bytes in total; 0: not known
    processes: Mapping[int, int] = MappingProxyType({})  # bytes by pid


class GpuFacts(NamedTuple):
    """What the control layer knows of a replica that holds or waits for GPUs; times are monotonic seconds."""

    memory: int | None = None  # that it needs on each GPU; None: as declared
    leaving: bool = False
    evictable: bool = False
    busy: bool = False
    ready_at: float | None = None
    swap_s: float | None = None
    residence_s: float | None = None
    last_used: float = 0.0
    claim: gpu_admission.Claim = "none"


class Hold(NamedTuple):
    gpus: tuple[int | str, ...]
    memory: int  # bytes of each; 0: all


class Need(NamedTuple):
    since: float
    number: int  # of GPUs
    memory: int


@dataclass
class GpuQueue:
    """Replicas that hold GPUs, and those that wait for some. `find` lists the devices of the machine.

    `replica_of` returns the replica of a process of this machine, empty: none.
    """

    find: Callable[[], Sequence[Device]]
    facts: Callable[[Replica], GpuFacts]
    clock: Callable[[], float]
    replica_of: Callable[[int], str]
    rules: gpu_admission.Rules
    held: dict[str, Hold] = field(default_factory=dict)
    waiting: dict[str, Need] = field(default_factory=dict)

    def enqueue(self, replica: str, number: int, memory: int) -> bool:
        """Add a replica behind the others; return whether it did not wait yet."""
        if replica in self.waiting:
            return False
        self.waiting[replica] = Need(self.clock(), number, memory)
        return True

    def release(self, replica: str) -> bool:
        """Drop a replica that has left; return whether others may get its GPUs or its place."""
        waited = self.waiting.pop(replica, None) is not None
        return self.held.pop(replica, None) is not None or waited

    def admit(self, records: Mapping[str, Replica]) -> Admission:
        """Decide about all that wait; what is admitted is held from now on."""
        if not self.waiting:
            return Admission()
        devices, facts = self.find(), {name: self.facts(records[name]) for name in (*self.held, *self.waiting)}
        usage = self.usage(devices)
        holders = [self._holder(records[name], facts[name], usage.get(name, {})) for name in self.held]
        needs = {
            name: need.memory if facts[name].memory is None else facts[name].memory or 0
            for name, need in self.waiting.items()
        }
        waiters = [
            Waiter(
                name, _service(records[name]), need.number, needs[name],
                records[name].gpus if records[name].state == "parked" else (), need.since, facts[name].claim,
            )
            for name, need in self.waiting.items()
        ]  # fmt: skip
        decision = gpu_admission.admit(self.clock(), _gpus(devices, holders, usage), holders, waiters, self.rules)
        for name, gpus in decision.admitted.items():
            self.held[name] = Hold(gpus, needs[name])
            del self.waiting[name]
        return decision

    def _holder(self, record: Replica, facts: GpuFacts, used: Mapping[int | str, int]) -> gpu_admission.Holder:
        gpus, memory = self.held[record.id]
        memory = max(memory, *used.values(), 0) if memory else memory  # one that uses more than it should counts so
        leaving = facts.leaving or record.state in ("parking", "draining")
        return gpu_admission.Holder(
            record.id, _service(record), gpus, memory, leaving, facts.evictable, facts.busy, facts.ready_at,
            facts.swap_s, facts.residence_s, facts.last_used,
        )  # fmt: skip

    def usage(self, devices: Sequence[Device]) -> dict[str, dict[int | str, int]]:
        """Return the bytes that processes of each replica use, by device; nothing where NVML shows no processes."""
        used: dict[str, dict[int | str, int]] = {}
        for device in devices:
            for pid, size in device.processes.items():
                if replica := self.replica_of(pid):
                    by_device = used.setdefault(replica, {})
                    by_device[device.id] = by_device.get(device.id, 0) + size
        return used


def _gpus(
    devices: Sequence[Device], holders: Sequence[gpu_admission.Holder], usage: Mapping[str, Mapping[int | str, int]]
) -> list[gpu_admission.Gpu]:
    """Return the devices with what others use of them.

    A ready holder counts as all it holds where NVML shows no processes. One that starts uses nothing yet: if all it
    will use were taken for its own, so much of what others use would seem free.
    """
    gpus = []
    for device in devices:
        own = (
            usage[each.replica].get(device.id, 0)
            if each.replica in usage
            else each.memory
            if each.ready_at is not None and not device.processes
            else 0
            for each in holders
            if device.id in each.gpus
        )
        gpus.append(gpu_admission.Gpu(device.id, device.memory, max(0, device.used_bytes - sum(own))))
    return gpus


def _service(record: Replica) -> str:
    return f"{record.namespace}/{record.service}"


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
        devices = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            used: dict[int, int] = {}
            with suppress(pynvml.NVMLError):  # not supported by all devices
                processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
                used = {int(each.pid): int(each.usedGpuMemory or 0) for each in processes}
            device = Device(index, int(memory.used), int(memory.total), used)
            devices.append((device, str(pynvml.nvmlDeviceGetUUID(handle))))
        return devices
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()


class ParkResult(NamedTuple):
    """Result of parking: host memory in use and the mean time of a wake so far, 0: none; or the error."""

    host_bytes: int = 0
    wake_s: float = 0.0
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
    found = status.json()
    return ParkResult(int(found.get("parked_bytes") or 0), float(found.get("wake_seconds") or 0.0))


def swap_seconds(result: ParkResult, parking_s: float) -> float:
    """Return what the next parking and wake will take: as the last ones, before the first wake by the bytes alone.

    The first parking allocates the host memory and copies the weights to it, which later ones need not.
    """
    return parking_s + result.wake_s if result.wake_s else result.host_bytes / LINK_BYTES_PER_S


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
