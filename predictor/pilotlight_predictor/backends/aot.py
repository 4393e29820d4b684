"""Compiled PyTorch models, run by torch's C++ library: weights travel meanwhile, and nobody imports torch.

`platformctl compile` makes the packages; the torch backend gives way to this one where a package fits (`instead`).
"""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pilotlight_predictor.aot import early
from pilotlight_predictor.aot.package import CONSTANTS, Package, Port, choose
from pilotlight_predictor.backends.base import LoadSpec, TensorInstance
from pilotlight_predictor.errors import BadRequest, LoadFailed
from pilotlight_predictor.inference import Inputs, Outputs
from pilotlight_predictor.tensors import Array, Tensor, TensorSpec

if TYPE_CHECKING:
    from pilotlight_predictor.aot.device_memory import MappedWeights, Memory, MovedWeights
    from pilotlight_predictor.aot.libtorch import LibTorch
    from pilotlight_predictor.weights.moving import Moving
    from pilotlight_predictor.weights.parked_weights import ParkedWeights

MODELS = 4  # runs at the same time, over all instances of the device


class AotInstance(TensorInstance):
    """Instances share the container and its weights; each has buffers, and on a GPU a stream, of its own."""

    def __init__(self, package: Package, shared: "Shared") -> None:
        self._package, self._shared = package, shared
        self._memory = shared.memory()
        self.parking = shared.parking
        self.inputs = [TensorSpec(port.name, port.datatype, port.shape) for port in package.inputs]
        self.outputs = [TensorSpec(port.name, port.datatype, port.shape) for port in package.outputs]

    def run(self, inputs: Inputs) -> Outputs:
        torch, memory, handles = self._shared.torch, self._memory, []
        ports, most = self._package.inputs, self._package.largest_batch
        lent = [np.require(_checked(inputs, port, most), requirements=["C", "A"]) for port in ports]
        for port, array in zip(ports, lent, strict=True):
            address = memory.lend(port.name, array)
            handles.append(torch.tensor(address, array.shape, self._shared.dtypes[port.datatype], self._shared.index))
        made = self._shared.container.run(handles, len(self._package.outputs), memory.stream)
        try:
            memory.settle()
            return {
                port.name: self._fetched(handle)
                for port, handle in zip(self._package.outputs, made, strict=True)
            }  # fmt: skip
        finally:
            for handle in made:
                torch.delete(handle)

    def _fetched(self, handle: int) -> Tensor:
        datatype, shape, strides, address = self._shared.torch.describe(handle)
        return Tensor(datatype, self._memory.fetch(address, datatype, shape, strides))

    def clone(self) -> "AotInstance":
        self._shared.users += 1
        return AotInstance(self._package, self._shared)

    def close(self) -> None:
        getattr(self._memory, "close", lambda: None)()
        self._shared.users -= 1
        if not self._shared.users:
            self._shared.container.close()


def _checked(inputs: Inputs, port: Port, largest: int) -> Array:
    """What native code is given must be what it was compiled for, whatever a configuration lets pass."""
    if port.name not in inputs:
        raise BadRequest(f"inputs must also hold {port.name}; the model was compiled with all of them")
    datatype, array = inputs[port.name]
    fits = len(array.shape) == len(port.shape) and all(
        wanted in (-1, dim) for wanted, dim in zip(port.shape, array.shape, strict=True)
    )
    if datatype != port.datatype or not fits:
        wanted = f"{port.datatype} of shape {list(port.shape)}"
        raise BadRequest(f"input {port.name!r} is {datatype} of shape {list(array.shape)}, must be {wanted}")
    if port.shape[:1] == (-1,) and not 0 < array.shape[0] <= largest:
        raise BadRequest(f"input {port.name!r} has {array.shape[0]} rows, the model was compiled for 1 to {largest}")
    return array


class Shared:
    """What all instances of one device have in common."""

    def __init__(self, folder: Path, package: Package, spec: LoadSpec) -> None:
        from pilotlight_predictor.aot.container import Container
        from pilotlight_predictor.aot.libtorch import libtorch
        from pilotlight_predictor.backends.torch_tensors import TORCH_NAMES

        self.users = 1
        self.index = spec.device.index
        self._cuda = spec.device.kind == "cuda"
        self.torch: LibTorch = libtorch(self._cuda)
        self.dtypes = {port.datatype: self.torch.dtype(TORCH_NAMES[port.datatype]) for port in package.inputs}
        self.container = Container(folder, self.torch, spec.device.kind, self.index, MODELS)
        try:
            self._weights = [self._held(spec.path, spec.ahead, spec.parks)]
            if (folder / CONSTANTS).exists():
                self._weights.append(self._held(folder / CONSTANTS, None, spec.parks))
            self.parking = self._parking()
            stored = {name: place for held in self._weights for name, place in held.stored.items()}
            self.container.adopt(stored, package.constants)
        except BaseException:
            self.container.close()
            raise

    def _parking(self) -> "ParkedWeights | None":
        if not self._cuda:
            return None
        from pilotlight_predictor.weights.parked_weights import parkable

        return parkable([block for held in self._weights for block in held.blocks])

    def _held(self, path: Path, ahead: "Moving | None", parks: bool) -> "MappedWeights | MovedWeights":
        from pilotlight_predictor.aot.device_memory import MappedWeights, MovedWeights

        if not self._cuda:
            return MappedWeights(path)
        return MovedWeights(ahead or _moving(path, self.index, parks))

    def memory(self) -> "Memory":
        from pilotlight_predictor.aot.device_memory import GpuMemory, HostMemory
        from pilotlight_predictor.weights.cuda_driver import Context

        return GpuMemory(Context(self.index)) if self._cuda else HostMemory()


def ahead(spec: LoadSpec) -> "Moving | None":
    """Weights begin to travel before torch's library is loaded."""
    if spec.device.kind != "cuda":
        return None
    return early.taken(spec.path, spec.device.index) or _moving(spec.path, spec.device.index, spec.parks)


def _moving(path: Path, index: int, parks: bool) -> "Moving":
    from pilotlight_predictor.weights.moving import Moving

    return Moving(path, index, beside_import=False, parks=parks).begin()


def load(spec: LoadSpec) -> AotInstance:
    found = choose(spec.path, spec.device.kind, spec.device.index, spec.trusted_compiled)
    if found is None:
        raise LoadFailed(f"{spec.path.name} has no compiled package beside it: platformctl compile makes one")
    if isinstance(found, str):
        raise LoadFailed(found)
    folder, package = found
    if spec.config.max_batch_size > package.largest_batch:
        most = spec.config.max_batch_size
        raise LoadFailed(
            f"max_batch_size = {most}, but {folder.name} was compiled for {package.largest_batch} rows: compile it "
            f"again with --largest-batch {most}"
        )
    return AotInstance(package, Shared(folder, package, spec))
