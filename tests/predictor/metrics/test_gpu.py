"""The sampler against an object with NVML's functions: the edge where a driver would be."""

import asyncio
import json
import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.eventually import eventually

from pilotlight_predictor.bootstrap.application import Application
from pilotlight_predictor.config import parse
from pilotlight_predictor.frontends.http.messages import HttpResponse
from pilotlight_predictor.frontends.http.server import HttpServer
from pilotlight_predictor.metrics.gpu_readings import GpuSampler
from pilotlight_predictor.server.server_state import Lifecycle


class NvmlError(Exception):
    pass


class NotSupported(NvmlError):
    pass


class NoPermission(NvmlError):
    pass


class FakeNvml:
    """Two GPUs in pynvml's units: percent, bytes, milliwatts, millijoules."""

    NVMLError_NotSupported = NotSupported
    NVMLError_NoPermission = NoPermission

    def __init__(self, count: int = 2) -> None:
        self.count = count
        self.energy_mj = 5_000_000
        self.unsupported: set[str] = set()
        self.broken: Exception | None = None
        self.shut_down = False

    def nvmlInit(self) -> None:
        if self.broken is not None:
            raise self.broken

    def nvmlShutdown(self) -> None:
        self.shut_down = True

    def nvmlDeviceGetCount(self) -> int:
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, device: int) -> str:
        return f"GPU-{device}"

    def nvmlDeviceGetName(self, device: int) -> bytes:
        return b"NVIDIA H200"

    def nvmlDeviceGetUtilizationRates(self, device: int) -> SimpleNamespace:
        self._check("utilization")
        return SimpleNamespace(gpu=37, memory=12)

    def nvmlDeviceGetMemoryInfo(self, device: int) -> SimpleNamespace:
        self._check("memory")
        return SimpleNamespace(total=150_000, used=60_000)

    def nvmlDeviceGetPowerUsage(self, device: int) -> int:
        self._check("power")
        return 350_500

    def nvmlDeviceGetPowerManagementLimit(self, device: int) -> int:
        return 700_000

    def nvmlDeviceGetTotalEnergyConsumption(self, device: int) -> int:
        self._check("energy")
        self.energy_mj += 1
        return self.energy_mj

    def _check(self, name: str) -> None:
        if self.broken is not None:
            raise self.broken
        if name in self.unsupported:
            raise NotSupported("Not Supported")


def test_samples_are_in_base_units() -> None:
    sampler = GpuSampler(interval_s=0.01, nvml=FakeNvml())
    sampler.start()
    eventually(sampler.latest)
    first, second = sampler.latest()
    sampler.stop()
    assert (first.device, first.uuid, second.uuid, first.name) == (0, "GPU-0", "GPU-1", "NVIDIA H200")
    assert (first.utilization, first.memory_total_bytes, first.memory_used_bytes) == (0.37, 150_000, 60_000)
    assert (first.power_usage_w, first.power_limit_w) == (350.5, 700.0)


def test_energy_counts_from_the_start_of_the_sampler_and_goes_on() -> None:
    sampler = GpuSampler(interval_s=0.001, nvml=FakeNvml(count=1))
    sampler.start()
    eventually(sampler.latest)
    before = sampler.latest()[0].energy_j
    assert before is not None
    assert before < 1_000  # far from the 5,000 J that the board had used before
    eventually(lambda: sampler.latest()[0].energy_j != before)
    sampler.stop()


def test_what_a_device_does_not_support_is_none() -> None:
    nvml = FakeNvml()
    nvml.unsupported = {"utilization", "energy", "power"}
    sampler = GpuSampler(interval_s=0.01, nvml=nvml)
    sampler.start()
    eventually(sampler.latest)
    sample = sampler.latest()[0]
    sampler.stop()
    assert (sample.utilization, sample.energy_j, sample.power_usage_w) == (None, None, None)
    assert sample.memory_used_bytes == 60_000


def test_a_driver_that_dies_ends_the_sampling_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    nvml = FakeNvml()
    sampler = GpuSampler(interval_s=0.001, nvml=nvml)
    with caplog.at_level(logging.WARNING, logger="pilotlight"):
        sampler.start()
        eventually(sampler.latest)
        nvml.broken = NvmlError("GPU is lost")
        eventually(lambda: not sampler.latest())
        sampler.stop()
    assert [record.getMessage() for record in caplog.records] == ["GPU metrics stopped: the driver failed: GPU is lost"]


def test_a_server_that_closes_ends_its_sampling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        flags = [f"--model-repository={tmp_path}", "--model-control-mode=explicit", "--grpc-port=-1"]
        assembly = Application(parse(flags, {}), Lifecycle(0.0, 0.0))
        await assembly.open(HttpServer(lambda _: HttpResponse(503)), None)
        work = asyncio.create_task(assembly.work(asyncio.Event()))
        async with asyncio.timeout(30):
            while not assembly.server.metrics.gpus():
                await asyncio.sleep(0.01)
        assert assembly._gpus is not None
        assert assembly._gpus._interval_s == 1.0
        work.cancel()
        await asyncio.wait([work])
        await assembly.close()

    nvml = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    asyncio.run(scene())
    eventually(lambda: nvml.shut_down)


@pytest.mark.parametrize(("flag", "sampled"), [("--gpu-metrics=true", True), ("--allow-gpu-metrics=false", False)])
def test_gpus_are_sampled_unless_that_is_turned_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: str, sampled: bool
) -> None:
    async def scene() -> None:
        flags = [f"--model-repository={tmp_path}", "--model-control-mode=explicit", "--grpc-port=-1", flag]
        assembly = Application(parse(flags, {}), Lifecycle(0.0, 0.0))
        await assembly._sample_gpus()
        assert (assembly._gpus is not None) is sampled
        await assembly.close()

    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    asyncio.run(scene())


@pytest.mark.parametrize("count", [0, 2])
def test_without_driver_or_device_there_is_nothing_and_no_noise(count: int, caplog: pytest.LogCaptureFixture) -> None:
    nvml = FakeNvml(count)
    nvml.broken = NvmlError("Driver Not Loaded") if count else None
    sampler = GpuSampler(interval_s=0.001, nvml=nvml)
    with caplog.at_level(logging.INFO, logger="pilotlight"):
        sampler.start()
        sampler.stop()
    assert list(sampler.latest()) == []
    assert caplog.records == []


def test_stop_closes_the_session_and_may_be_called_before_start() -> None:
    nvml = FakeNvml()
    sampler = GpuSampler(interval_s=60, nvml=nvml)
    sampler.start()
    eventually(sampler.latest)
    sampler.stop()
    eventually(lambda: nvml.shut_down)  # it waits no longer than two seconds for its thread
    eventually(lambda: not sampler.latest())
    GpuSampler().stop()


def test_the_command_prints_one_line_of_json() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pilotlight_predictor.metrics.gpu_readings"], capture_output=True, check=True
    )
    assert isinstance(json.loads(done.stdout), list)
    assert done.stdout.count(b"\n") == 1
