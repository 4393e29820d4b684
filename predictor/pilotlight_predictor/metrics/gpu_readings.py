"""GPU utilisation, memory and power by NVML, sampled each second in a thread, for the `nv_gpu_*` metrics.

NVML creates no CUDA context. It is imported inside the thread, which ends if there is no library, driver or GPU.
`python -m pilotlight_predictor.metrics.gpu_readings` prints one sample as a line of JSON.
"""

import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from pilotlight_predictor.observability.logs import log


class GpuSample(NamedTuple):
    """One GPU at one instant; None if the device does not report a value (utilisation of a MIG slice)."""

    device: int
    uuid: str
    name: str
    utilization: float | None  # 0 to 1
    memory_total_bytes: int | None
    memory_used_bytes: int | None
    power_usage_w: float | None
    power_limit_w: float | None
    energy_j: float | None  # since the sampler started


class NvmlReader:
    """NVML session of one sampler. `nvml` is the module `pynvml`, or a fake."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        nvml.nvmlInit()
        self._devices = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        self._energy_at_start = [self._energy_j(device) for device in self._devices]

    def read(self) -> list[GpuSample]:
        return [self._sample(index, device) for index, device in enumerate(self._devices)]

    def close(self) -> None:
        self._nvml.nvmlShutdown()

    def _sample(self, index: int, device: Any) -> GpuSample:
        nvml = self._nvml
        rates = self._query(nvml.nvmlDeviceGetUtilizationRates, device)
        memory = self._query(nvml.nvmlDeviceGetMemoryInfo, device)
        energy, energy_at_start = self._energy_j(device), self._energy_at_start[index]
        return GpuSample(
            device=index,
            uuid=_text(nvml.nvmlDeviceGetUUID(device)),
            name=_text(nvml.nvmlDeviceGetName(device)),
            utilization=None if rates is None else rates.gpu / 100,
            memory_total_bytes=None if memory is None else int(memory.total),
            memory_used_bytes=None if memory is None else int(memory.used),
            power_usage_w=_from_milli(self._query(nvml.nvmlDeviceGetPowerUsage, device)),
            power_limit_w=_from_milli(self._query(nvml.nvmlDeviceGetPowerManagementLimit, device)),
            energy_j=None if energy is None or energy_at_start is None else energy - energy_at_start,
        )

    def _energy_j(self, device: Any) -> float | None:
        return _from_milli(self._query(self._nvml.nvmlDeviceGetTotalEnergyConsumption, device))

    def _query(self, function: Callable[[Any], Any], device: Any) -> Any:
        """Return None for a query that the device does not support."""
        try:
            return function(device)
        except (self._nvml.NVMLError_NotSupported, self._nvml.NVMLError_NoPermission):
            return None


class GpuSampler:
    """Sampler of all GPUs. `latest` never blocks or raises; it is empty before the first sample and after a failure."""

    def __init__(self, interval_s: float = 1.0, nvml: Any = None) -> None:
        self._interval_s = interval_s
        self._nvml = nvml
        self._latest: Sequence[GpuSample] = ()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """After any fork: neither threads nor NVML survive one."""
        self._thread = threading.Thread(target=self._run, name="gpu-sampler", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """Stop the thread; wait at most `timeout_s`, since the driver may hang."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def latest(self) -> Sequence[GpuSample]:
        return self._latest

    def _run(self) -> None:
        reader = open_reader(self._nvml)
        if reader is None:
            return
        try:
            self._latest = reader.read()
            while not self._stopped.wait(self._interval_s):
                self._latest = reader.read()
            reader.close()
        except Exception as error:
            log("gpu.sampling_stopped", f"GPU metrics stopped: the driver failed: {error}", level="WARNING")
        finally:
            self._latest = ()


def open_reader(nvml: Any = None) -> NvmlReader | None:
    """Return None without the `gpu` extra, a driver or a device, the usual case on a CPU machine."""
    try:
        reader = NvmlReader(nvml if nvml is not None else import_module("pynvml"))
        return reader if reader.read() else None
    except Exception as error:
        log("gpu.none", f"no GPU metrics: {error}", level="DEBUG")
        return None


def _from_milli(value: int | None) -> float | None:
    return None if value is None else value / 1000


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def main() -> None:
    import json
    import sys

    reader = open_reader()
    samples = reader.read() if reader is not None else []
    sys.stdout.write(json.dumps([sample._asdict() for sample in samples]) + "\n")


if __name__ == "__main__":
    main()
