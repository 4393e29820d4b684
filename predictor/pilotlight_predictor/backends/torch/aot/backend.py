"""Compiled PyTorch models, run by torch's C++ library without importing torch.

`platformctl compile` makes the packages; the torch backend selects this one if a package fits (`alternative_backend`).
"""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pilotlight_predictor.backends.base import LoadSpec, TensorInstance
from pilotlight_predictor.backends.torch.aot import early_start
from pilotlight_predictor.backends.torch.aot.package_lookup import CONSTANTS, Package, Port, find_package
from pilotlight_predictor.core.requests import Inputs, Outputs
from pilotlight_predictor.core.tensors import Array, Tensor, TensorSpec, fits
from pilotlight_predictor.errors import BadRequest, LoadFailed

if TYPE_CHECKING:
    from pilotlight_predictor.backends.torch.aot.device_memory import DeviceWeights, MappedWeights, Memory
    from pilotlight_predictor.backends.torch.aot.libtorch import LibTorch
    from pilotlight_predictor.gpu.parked_weights import ParkedWeights
    from pilotlight_predictor.gpu.safetensors_upload import WeightTransfer

MAX_CONCURRENT_RUNS = 4  # concurrent runs over all instances of a device


class AotInstance(TensorInstance):
    """Instance with its own buffers and, on a GPU, its own stream; all share the container and its weights."""

    def __init__(self, package: Package, shared: "SharedModel") -> None:
        self._package, self._shared = package, shared
        self._memory = shared.memory()
        self.parking = shared.parking
        self.inputs = [TensorSpec(port.name, port.datatype, port.shape) for port in package.inputs]
        self.outputs = [TensorSpec(port.name, port.datatype, port.shape) for port in package.outputs]

    def run(self, inputs: Inputs) -> Outputs:
        torch, memory, handles = self._shared.torch, self._memory, []
        ports, most = self._package.inputs, self._package.largest_batch
        arrays = [np.require(_validated(inputs, port, most), requirements=["C", "A"]) for port in ports]
        for port, array in zip(ports, arrays, strict=True):
            address = memory.stage_input(port.name, array)
            handles.append(
                torch.create_tensor(address, array.shape, self._shared.dtypes[port.datatype], self._shared.index)
            )
        results = self._shared.container.run(handles, len(self._package.outputs), memory.stream)
        try:
            memory.synchronize()
            return {
                port.name: self._read_output(handle)
                for port, handle in zip(self._package.outputs, results, strict=True)
            }  # fmt: skip
        finally:
            for handle in results:
                torch.delete(handle)

    def _read_output(self, handle: int) -> Tensor:
        datatype, shape, strides, address = self._shared.torch.describe(handle)
        return Tensor(datatype, self._memory.read_output(address, datatype, shape, strides))

    def clone(self) -> "AotInstance":
        self._shared.users += 1
        return AotInstance(self._package, self._shared)

    def close(self) -> None:
        getattr(self._memory, "close", lambda: None)()
        self._shared.users -= 1
        if not self._shared.users:
            self._shared.container.close()


def _validated(inputs: Inputs, port: Port, largest: int) -> Array:
    """Return the input's array if it matches what the native code was compiled for, else raise BadRequest."""
    if port.name not in inputs:
        raise BadRequest(f"missing inputs: '{port.name}'; the model was compiled with all of them")
    datatype, array = inputs[port.name]
    if datatype != port.datatype or not fits(array.shape, port.shape):
        wanted = f"{port.datatype} of shape {list(port.shape)}"
        raise BadRequest(f"input {port.name!r} is {datatype} of shape {list(array.shape)}, must be {wanted}")
    if port.shape[:1] == (-1,) and not 0 < array.shape[0] <= largest:
        raise BadRequest(f"input {port.name!r} has {array.shape[0]} rows, the model was compiled for 1 to {largest}")
    return array


class SharedModel:
    """Container, weights and parking that all instances on one device share."""

    def __init__(self, folder: Path, package: Package, spec: LoadSpec) -> None:
        from pilotlight_predictor.backends.torch.aot.libtorch import Container, libtorch
        from pilotlight_predictor.backends.torch.tensors import TORCH_NAMES

        self.users = 1
        self.index = spec.device.index
        self._cuda = spec.device.kind == "cuda"
        self.torch: LibTorch = libtorch(self._cuda)
        self.dtypes = {port.datatype: self.torch.dtype(TORCH_NAMES[port.datatype]) for port in package.inputs}
        self.container = Container(folder, self.torch, spec.device.kind, self.index, MAX_CONCURRENT_RUNS)
        try:
            self._weights = [self._open_weights(spec.path, spec.prefetched, spec.parkable)]
            if (folder / CONSTANTS).exists():
                self._weights.append(self._open_weights(folder / CONSTANTS, None, spec.parkable))
            self.parking: ParkedWeights | None = None
            if self._cuda:
                from pilotlight_predictor.gpu.parked_weights import create_parked_weights

                self.parking = create_parked_weights([block for each in self._weights for block in each.blocks])
            stored = {name: tensor for weights in self._weights for name, tensor in weights.stored.items()}
            self.container.bind_constants(stored, package.constants)
        except BaseException:
            self.container.close()
            raise

    def _open_weights(
        self, path: Path, transfer: "WeightTransfer | None", parkable: bool
    ) -> "MappedWeights | DeviceWeights":
        from pilotlight_predictor.backends.torch.aot.device_memory import DeviceWeights, MappedWeights

        if not self._cuda:
            return MappedWeights(path)
        return DeviceWeights(transfer or _start_transfer(path, self.index, parkable))

    def memory(self) -> "Memory":
        from pilotlight_predictor.backends.torch.aot.device_memory import GpuMemory, HostMemory
        from pilotlight_predictor.gpu.cuda_driver import Context

        return GpuMemory(Context(self.index)) if self._cuda else HostMemory()


def prefetch(spec: LoadSpec) -> "WeightTransfer | None":
    """Start the transfer of weights before torch's library is loaded."""
    if spec.device.kind != "cuda":
        return None
    return early_start.take_transfer(spec.path, spec.device.index) or _start_transfer(
        spec.path, spec.device.index, spec.parkable
    )


def _start_transfer(path: Path, index: int, parkable: bool) -> "WeightTransfer":
    from pilotlight_predictor.gpu.safetensors_upload import WeightTransfer

    return WeightTransfer(path, index, during_import=False, parkable=parkable).start()


def load(spec: LoadSpec) -> AotInstance:
    candidate = find_package(spec.path, spec.device.kind, spec.device.index, spec.trusted_compiled)
    if candidate is None:
        raise LoadFailed(f"{spec.path.name} has no compiled package beside it: create it with platformctl compile")
    if isinstance(candidate, str):
        raise LoadFailed(candidate)
    folder, package = candidate
    if spec.config.max_batch_size > package.largest_batch:
        most = spec.config.max_batch_size
        raise LoadFailed(
            f"max_batch_size = {most}, but {folder.name} was compiled for {package.largest_batch} rows: compile it "
            f"again with --largest-batch {most}"
        )
    return AotInstance(package, SharedModel(folder, package, spec))
