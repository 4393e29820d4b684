"""GPUs of this machine: who holds memory of which, who waits for some, and the host memory of those that park.

scaling/gpu_admission.py decides, and the supervisor acts on it. Parked replicas (parking/) hold no GPU.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from pilotlight.targets.local.scaling import gpu_admission
from pilotlight.targets.local.scaling.gpu_admission import Admission, Waiter
from pilotlight.targets.local.supervisor.replica_record import Replica
from pilotlight.wire.machine import total_memory

PARKED_PERCENT: Final = 25.0  # of the host memory, for all parked replicas together
LEAVING: Final = ("parking", "parked", "draining")  # states of holders that are about to free their GPUs


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
    seen_at: float | None = None  # until when the requests are known; None: until now
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
        leaving = facts.leaving or record.state in LEAVING
        return gpu_admission.Holder(
            record.id, _service(record), gpus, memory, leaving, facts.evictable, facts.busy, facts.ready_at,
            facts.swap_s, facts.residence_s, facts.last_used, facts.seen_at,
        )  # fmt: skip

    def bytes_used(self, record: Replica) -> int:
        """Return the bytes of GPU memory that a replica uses, as measured, else as it holds; 0: not known."""
        devices = self.find()
        if used := self.usage(devices).get(record.id):
            return sum(used.values())
        if record.gpu_memory:
            return record.gpu_memory * len(record.gpus)
        return sum(device.used_bytes for device in devices if device.id in record.gpus)

    def blocking_contexts(self, decision: Admission, records: Mapping[str, Replica]) -> list[str]:
        """Return the parked replicas whose CUDA contexts should leave their GPUs.

        Another one has got such a GPU whole, or waits for memory of it that no holder will free: a context that has
        left takes longer to come back than weights do.
        """
        whole = {gpu for name, gpus in decision.admitted.items() if not self.held[name].memory for gpu in gpus}
        short = [name for name, need in self.waiting.items() if need.memory and name in decision.blocked]

        def is_needed(parked: Replica, gpu: int | str) -> bool:
            return gpu in whole or any(name != parked.id and gpu in (records[name].gpus or (gpu,)) for name in short)

        parked = [each for each in records.values() if each.state == "parked"]
        return [each.id for each in parked if any(is_needed(each, gpu) for gpu in each.gpus)]

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


def parking_budget(percent: float) -> int:
    """Return the bytes of host memory that all parked replicas may use together."""
    return int(total_memory() * percent / 100)


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
