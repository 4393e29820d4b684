"""Device detection and placement of a model's instances. Needs no CUDA library."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from pilotlight_predictor.backends.base import Device
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.observability.logs import log
from pilotlight_predictor.repository.model_config import InstanceGroup

CPU = Device()


def gpu_count(dev: Path = Path("/dev"), environ: Mapping[str, str] = os.environ) -> int:
    """Number of GPUs this process may use: device nodes, limited by CUDA_VISIBLE_DEVICES. Makes no driver call."""
    nodes = sum(1 for node in dev.glob("nvidia*") if re.fullmatch(r"nvidia\d+", node.name))
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return nodes
    chosen = [part for part in visible.split(",") if part.strip() not in {"", "-1"}]
    return min(nodes, len(chosen))


def default_device(setting: str, gpus: int) -> Device:
    """Device for `--device auto|cpu|cuda|cuda:N` on a machine with `gpus` GPUs."""
    if setting == "cpu" or (setting == "auto" and gpus == 0):
        return CPU
    index = int(setting.partition(":")[2] or 0)
    if index >= gpus:
        message = f"device = {setting}, but this machine has {gpus} GPUs: models run on the CPU"
        log("device.missing", message, level="WARNING")
        return CPU
    return Device("cuda", index)


def instance_devices(groups: Sequence[InstanceGroup], setting: str, gpus: int, default_count: int = 1) -> list[Device]:
    """One device per instance, in the order of the groups. Count is per device, as in Triton."""
    groups = groups or (InstanceGroup(default_count),)
    return [device for group in groups for device in _group_devices(group, setting, gpus) for _ in range(group.count)]


def _group_devices(group: InstanceGroup, setting: str, gpus: int) -> list[Device]:
    if group.kind == "CPU":
        return [CPU]
    if group.kind == "GPU" or group.gpus:
        indices = group.gpus or range(max(gpus, 1))
        for index in indices:
            if index >= gpus:
                reason = f"instance_group requests GPU {index}, but this machine has {gpus} GPUs"
                raise LoadFailed(f"{reason}; use kind: KIND_CPU")
        return [Device("cuda", index) for index in indices]
    default = default_device(setting, gpus)
    if setting == "auto" and default.kind == "cuda":
        return [Device("cuda", index) for index in range(gpus)]
    return [default]
