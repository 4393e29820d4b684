"""GPU allocation: whole devices, each to one replica, as nvidia.com/gpu."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


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
        available = f"this machine has {len(devices)}" if devices else "this machine shows none"
        return (), f"needs {count} GPU{'s' if count > 1 else ''}, and {available}"
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
