"""One compiled model in memory: its library, its constants in their place, and `run`. Used by backends/aot.py."""

import os
from collections.abc import Mapping, Sequence
from ctypes import POINTER, Structure, byref, c_bool, c_char_p, c_size_t, c_void_p
from pathlib import Path
from typing import Any, Final

from pilotlight_predictor.aot.libraries import opened
from pilotlight_predictor.aot.libtorch import LibTorch, last_error
from pilotlight_predictor.aot.package import LIBRARY
from pilotlight_predictor.errors import BackendFailed, LoadFailed
from pilotlight_predictor.tensors import Shape
from pilotlight_predictor.weights.safetensors_file import TYPES

ADOPT: Final = "AOTInductorModelContainerUpdateUserManagedConstantBufferPairs"
Stored = tuple[str, Shape, int]  # safetensors' type, shape, address on the device


class Pair(Structure):
    _fields_ = (("name", c_char_p), ("tensor", c_void_p))


class Container:
    """`run` may be called by as many threads at once as it was made for."""

    def __init__(self, folder: Path, torch: LibTorch, device: str, index: int, models: int = 1) -> None:
        self._torch, self._index = torch, index
        self._library = opened(folder / LIBRARY, os.RTLD_LOCAL)
        handle = c_void_p()
        name = device if device == "cpu" else f"{device}:{index}"
        self._call("CreateWithDevice", byref(handle), c_size_t(models), name.encode(), str(folder).encode())
        self._handle = handle
        self._adopted: list[int] = []

    def _call(self, name: str, *arguments: Any, failure: type[Exception] = LoadFailed) -> None:
        code = getattr(self._library, f"AOTInductorModelContainer{name}")(*arguments)
        if code:
            said = last_error(self._library)
            raise failure(f"the compiled model fails in {name}{f': {said}' if said else ''}")

    def constants(self) -> list[tuple[bytes, str]]:
        """The container's own name of each, and the module's."""
        number = c_size_t()
        self._call("GetNumConstants", self._handle, byref(number))
        found = []
        for place in range(number.value):
            own, given = c_char_p(), c_char_p()
            self._call("GetConstantName", self._handle, c_size_t(place), byref(own))
            self._call("GetConstantOriginalFQN", self._handle, c_size_t(place), byref(given))
            found.append((own.value or b"", (given.value or own.value or b"").decode()))
        return found

    def adopt(self, stored: Mapping[str, Stored], names: Mapping[str, str]) -> None:
        """Weights stay where they are; the container only learns where that is."""
        wanted = self.constants()
        pairs = (Pair * len(wanted))()
        for pair, (own, given) in zip(pairs, wanted, strict=True):
            place = stored.get(names.get(given, given))
            if place is None:
                raise LoadFailed(f"neither the weights nor the package hold {given!r}, which the compiled model needs")
            dtype, shape, address = place
            tensor = self._torch.tensor(address, shape, self._torch.dtype(TYPES[dtype][0]), self._index)
            self._adopted.append(tensor)
            pair.name, pair.tensor = own, tensor
        function = getattr(self._library, ADOPT, None)
        if function is None:
            raise LoadFailed("the compiled model cannot adopt weights: compile it with torch 2.8 or newer")
        function.argtypes = [c_void_p, POINTER(Pair), c_size_t, c_bool, c_bool]
        if function(self._handle, pairs, len(wanted), False, True):
            raise LoadFailed(f"the compiled model refuses its weights: {last_error(self._library)}")

    def run(self, inputs: Sequence[int], outputs: int, stream: int = 0) -> list[int]:
        """Handles of inputs are consumed, those of outputs are the caller's to delete."""
        given, made = (c_void_p * len(inputs))(*inputs), (c_void_p * outputs)()
        self._call(
            "Run", self._handle, given, c_size_t(len(inputs)), made, c_size_t(outputs), c_void_p(stream), c_void_p(0),
            failure=BackendFailed,
        )  # fmt: skip
        return [handle or 0 for handle in made]

    def outputs(self) -> int:
        number = c_size_t()
        self._call("GetNumOutputs", self._handle, byref(number))
        return number.value

    def close(self) -> None:
        self._call("Delete", self._handle)
        for tensor in self._adopted:
            self._torch.delete(tensor)
        self._adopted.clear()
