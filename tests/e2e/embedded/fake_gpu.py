"""A GPU made of host memory: an NVML that reports it, and models that allocate on it.

Each process writes what it has allocated into a file by its pid; the NVML sums those of living processes, and an
allocation beyond the memory of the device fails as CUDA's does.
"""

from pathlib import Path

NVML = """
import os
from pathlib import Path
from types import SimpleNamespace

FOLDER = Path({folder!r})


class NVMLError(Exception):
    pass


def processes(handle=0):
    found = [(int(file.name), int(file.read_text() or 0)) for file in FOLDER.glob("[0-9]*")]
    return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in found if os.path.exists(f"/proc/{{pid}}")]


nvmlInit = nvmlShutdown = lambda: None
nvmlDeviceGetCount = lambda: 1
nvmlDeviceGetHandleByIndex = lambda index: index
nvmlDeviceGetMemoryInfo = lambda handle: SimpleNamespace(
    used=sum(each.usedGpuMemory for each in processes()), total={memory}
)
nvmlDeviceGetComputeRunningProcesses = processes
nvmlDeviceGetUUID = lambda handle: "GPU-0"
"""
MODEL = """
import os
from pathlib import Path

INPUTS = {{"x": ("FP32", [-1, 4])}}
OUTPUTS = {{"y": ("FP32", [-1, 4])}}
FOLDER = Path({folder!r})


def allocated():
    return sum(int(file.read_text() or 0) for file in FOLDER.glob("[0-9]*") if os.path.exists(f"/proc/{{file.name}}"))


class Model:
    def initialize(self, args):
        self.wake()

    def execute(self, inputs):
        assert self.weights
        return {{"y": inputs["x"] * 2}}

    def finalize(self):
        self.park()

    def park(self):
        self.weights = None
        (FOLDER / str(os.getpid())).unlink(missing_ok=True)

    def wake(self):
        (FOLDER / str(os.getpid())).write_text("{size}")
        if allocated() > {memory}:
            raise MemoryError(f"CUDA out of memory: {{allocated()}} of {memory}")
        self.weights = bytearray({size})
"""


def model(nvml: Path, memory: int, size: int) -> str:
    """The source of a model that allocates `size` bytes, and frees them while it is parked."""
    return MODEL.format(folder=str(nvml / "gpu"), memory=memory, size=size)


def write_nvml(folder: Path, memory: int = 1 << 30) -> dict[str, str]:
    """The variables of a platform that finds one GPU with so many bytes."""
    (folder / "gpu").mkdir(parents=True)
    (folder / "pynvml.py").write_text(NVML.format(folder=str(folder / "gpu"), memory=memory))
    return {"PYTHONPATH": str(folder), "PILOTLIGHT_GPU_RESIDENCE": "1", "PILOTLIGHT_GPU_PATIENCE": "3"}
