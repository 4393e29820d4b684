"""AOTInductor container of one compiled model: its library, its constants, and `run`. Used by backends/aot.py."""

import os
from collections.abc import Mapping, Sequence
from ctypes import POINTER, Structure, byref, c_bool, c_char_p, c_size_t, c_void_p
from pathlib import Path
from typing import Any, Final

from pilotlight_predictor.aot.libraries import open_library
from pilotlight_predictor.aot.libtorch import LibTorch, last_error
from pilotlight_predictor.aot.package import LIBRARY
from pilotlight_predictor.errors import BackendFailed, LoadFailed
from pilotlight_predictor.tensors import Shape
from pilotlight_predictor.weights.safetensors_file import TYPES

UPDATE_CONSTANTS: Final = "AOTInductorModelContainerUpdateUserManagedConstantBufferPairs"
StoredTensor = tuple[str, Shape, int]  # safetensors dtype, shape, address on the device


class ConstantPair(Structure):
    _fields_ = (("name", c_char_p), ("tensor", c_void_p))


class Container:
    """`run` may be called by up to `models` threads at a time."""

    def __init__(self, folder: Path, torch: LibTorch, device: str, index: int, models: int = 1) -> None:
        self._torch, self._index = torch, index
        self._library = open_library(folder / LIBRARY, os.RTLD_LOCAL)
        handle = c_void_p()
        name = device if device == "cpu" else f"{device}:{index}"
        self._call("CreateWithDevice", byref(handle), c_size_t(models), name.encode(), str(folder).encode())
        self._handle = handle
        self._bound: list[int] = []

    def _call(self, name: str, *arguments: Any, failure: type[Exception] = LoadFailed) -> None:
        code = getattr(self._library, f"AOTInductorModelContainer{name}")(*arguments)
        if code:
            reason = last_error(self._library)
            raise failure(f"the compiled model fails in {name}{f': {reason}' if reason else ''}")

    def constants(self) -> list[tuple[bytes, str]]:
        """Name of each constant in the container and in the module."""
        number = c_size_t()
        self._call("GetNumConstants", self._handle, byref(number))
        names = []
        for index in range(number.value):
            own, original = c_char_p(), c_char_p()
            self._call("GetConstantName", self._handle, c_size_t(index), byref(own))
            self._call("GetConstantOriginalFQN", self._handle, c_size_t(index), byref(original))
            names.append((own.value or b"", (original.value or own.value or b"").decode()))
        return names

    def bind_constants(self, stored: Mapping[str, StoredTensor], names: Mapping[str, str]) -> None:
        """Pass the addresses of the weights to the container, without a copy."""
        constants = self.constants()
        pairs = (ConstantPair * len(constants))()
        for pair, (own, original) in zip(pairs, constants, strict=True):
            weight = stored.get(names.get(original, original))
            if weight is None:
                raise LoadFailed(
                    f"neither the weights nor the package hold {original!r}, which the compiled model needs"
                )
            dtype, shape, address = weight
            tensor = self._torch.create_tensor(address, shape, self._torch.dtype(TYPES[dtype][0]), self._index)
            self._bound.append(tensor)
            pair.name, pair.tensor = own, tensor
        function = getattr(self._library, UPDATE_CONSTANTS, None)
        if function is None:
            raise LoadFailed("the compiled model cannot adopt weights: compile it with torch 2.8 or newer")
        function.argtypes = [c_void_p, POINTER(ConstantPair), c_size_t, c_bool, c_bool]
        if function(self._handle, pairs, len(constants), False, True):
            raise LoadFailed(f"the compiled model refuses its weights: {last_error(self._library)}")

    def run(self, inputs: Sequence[int], outputs: int, stream: int = 0) -> list[int]:
        """Run on tensor handles; those of inputs are consumed, those of outputs are the caller's to delete."""
        ins, outs = (c_void_p * len(inputs))(*inputs), (c_void_p * outputs)()
        self._call(
            "Run", self._handle, ins, c_size_t(len(inputs)), outs, c_size_t(outputs), c_void_p(stream), c_void_p(0),
            failure=BackendFailed,
        )  # fmt: skip
        return [handle or 0 for handle in outs]

    def close(self) -> None:
        self._call("Delete", self._handle)
        for tensor in self._bound:
            self._torch.delete(tensor)
        self._bound.clear()
