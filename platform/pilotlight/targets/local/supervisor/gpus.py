"""Which replica gets which GPU: whole devices, each to one replica, as nvidia.com/gpu means it."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Device(NamedTuple):
    """`id` is what CUDA_VISIBLE_DEVICES takes; `used_bytes` what somebody, perhaps outside the platform, uses of it."""

    id: int | str
    used_bytes: int = 0


class Holder(NamedTuple):
    service: str  # namespace/name
    devices: tuple[int | str, ...]


def allocate(devices: Sequence[Device], held: Mapping[str, Holder], count: int) -> tuple[tuple[int | str, ...], str]:
    """The devices, or why there are none. Of the free ones, those that are used least come first."""
    if count > len(devices):
        there = f"this machine has {len(devices)}" if devices else "this machine shows none"
        return (), f"needs {count} GPU{'s' if count > 1 else ''}, and {there}"
    taken = {device for holder in held.values() for device in holder.devices}
    free = sorted((device for device in devices if device.id not in taken), key=lambda device: device.used_bytes)
    if len(free) >= count:
        return tuple(device.id for device in free[:count]), ""
    holders = ", ".join(sorted({holder.service for holder in held.values()}))
    what = "a GPU" if count == 1 else f"{count} GPUs"
    return (), f"waiting for {what} held by {holders} ({len(taken)} of {len(devices)} in use)"


@dataclass
class Gpus:
    """Who holds what. The machine is asked when a replica first wants one."""

    find: Callable[[], Sequence[Device]]
    held: dict[str, Holder] = field(default_factory=dict)
    count: int = 0  # devices of the machine, when it was last asked

    def take(self, replica: str, service: str, count: int) -> tuple[tuple[int | str, ...], str]:
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

    def take_again(self, replica: str, service: str, devices: tuple[int | str, ...]) -> str:
        """The very devices that a process has known from its start; or why it has to wait for them."""
        others = {
            held.service for name, held in self.held.items() if name != replica and set(held.devices) & set(devices)
        }
        if others:
            return f"parked, and waiting for its GPU held by {', '.join(sorted(others))}"
        self.hold(replica, service, devices)
        return ""

    def hold(self, replica: str, service: str, devices: tuple[int | str, ...]) -> None:
        """A living replica has them already."""
        if devices:
            self.held[replica] = Holder(service, devices)

    def release(self, replica: str) -> bool:
        return self.held.pop(replica, None) is not None


def find_devices() -> Sequence[Device]:
    """What NVML reports, limited to what our own CUDA_VISIBLE_DEVICES shows; nothing without NVML."""
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
