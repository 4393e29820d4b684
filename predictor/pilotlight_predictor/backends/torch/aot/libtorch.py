"""torch's C++ library through its C ABI, without importing torch, and the AOTInductor container of one compiled model.

Python's own loading of a library holds the GIL during half a second of relocation; `dlopen` called through ctypes does
not. early_start.py imports this module while the server starts, so it imports little.
"""

import ctypes
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from ctypes import POINTER, Structure, byref, c_bool, c_char_p, c_int32, c_int64, c_size_t, c_void_p
from functools import cache
from itertools import accumulate
from operator import mul
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pilotlight.wire.environments.install_command import install_command
from pilotlight_predictor.backends.torch.aot.package_lookup import LIBRARY, torch_root
from pilotlight_predictor.errors import BackendFailed, LoadFailed
from pilotlight_predictor.gpu.safetensors_header import TYPES

if TYPE_CHECKING:
    from pilotlight_predictor.core.tensors import Shape

_LOADING: Final = Lock()
BASE: Final = ("libtorch_global_deps.so", "libc10.so", "libtorch_cpu.so")
GPU: Final = ("libc10_cuda.so", "libtorch_cuda.so")
UPDATE_CONSTANTS: Final = "AOTInductorModelContainerUpdateUserManagedConstantBufferPairs"
StoredTensor: TypeAlias = "tuple[str, Shape, int]"  # safetensors dtype, shape, address on the device


def torch_library(cuda: bool) -> ctypes.CDLL:
    """Load torch's libraries and return the one with the C interface; concurrent callers wait."""
    with _LOADING:
        return _load(cuda)


@cache
def _load(cuda: bool) -> ctypes.CDLL:
    root = torch_root()
    if root is None:
        raise LoadFailed(f"compiled models need torch's library: {install_command('torch')}")
    names = (*BASE, *(GPU if cuda else ()), "libtorch.so")
    loaded = {name: open_library(root / "lib" / name, os.RTLD_GLOBAL) for name in names}
    return loaded["libtorch_cpu.so"]


def preload_torch(cuda: bool) -> None:
    """Load the libraries that `import torch` will load; failures are ignored, since the import will raise them."""
    root = torch_root()
    if root is None:
        return
    with suppress(LoadFailed):
        for name in (*BASE, *(GPU if cuda else ()), "libtorch.so", "libtorch_python.so"):
            open_library(root / "lib" / name, os.RTLD_GLOBAL if name == BASE[0] else os.RTLD_LOCAL)


def open_library(path: Path, mode: int) -> ctypes.CDLL:
    """Load a library by `dlopen`, without the GIL. Raises LoadFailed."""
    system = ctypes.CDLL(None)
    system.dlopen.restype, system.dlopen.argtypes = ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_int]
    system.dlerror.restype = ctypes.c_char_p
    handle = system.dlopen(os.fsencode(path), mode | os.RTLD_NOW)
    if not handle:
        reason = (system.dlerror() or b"").decode(errors="replace")
        raise LoadFailed(f"{path.name} cannot be loaded: {reason}")
    return ctypes.CDLL(str(path), handle=handle)


class LibTorch:
    """The library. Tensors are handles, created from our memory or returned by a model; the caller deletes them."""

    def __init__(self, cuda: bool) -> None:
        from pilotlight_predictor.backends.torch.tensors import TORCH_NAMES

        self._torch = torch_library(cuda)
        self._torch.aoti_torch_create_tensor_from_blob.argtypes = [
            c_void_p, c_int64, POINTER(c_int64), POINTER(c_int64), c_int64, c_int32, c_int32, c_int32,
            POINTER(c_void_p),
        ]  # fmt: skip
        for name in ("get_data_ptr", "get_dim", "get_sizes", "get_strides", "get_dtype"):
            getattr(self._torch, f"aoti_torch_{name}").argtypes = [c_void_p, c_void_p]
        self._torch.aoti_torch_delete_tensor_object.argtypes = [c_void_p]
        kind = "cuda" if cuda else "cpu"
        self._kind = int(getattr(self._torch, f"aoti_torch_device_type_{kind}")())
        known = {name: each for each, name in TORCH_NAMES.items() if hasattr(self._torch, f"aoti_torch_dtype_{name}")}
        self._names = {self.dtype(name): datatype for name, datatype in known.items()}

    def dtype(self, name: str) -> int:
        return int(getattr(self._torch, f"aoti_torch_dtype_{name}")())

    def create_tensor(self, address: int, shape: "Shape", dtype: int, index: int) -> int:
        """Create a tensor over contiguous memory, which must outlive it."""
        sizes = (c_int64 * len(shape))(*shape)
        steps = list(accumulate((max(dim, 1) for dim in reversed(shape[1:])), mul, initial=1)) if shape else []
        strides = (c_int64 * len(shape))(*reversed(steps))
        handle = c_void_p()
        code = self._torch.aoti_torch_create_tensor_from_blob(
            address, len(shape), sizes, strides, 0, dtype, self._kind, index, byref(handle)
        )
        if code or handle.value is None:
            raise LoadFailed(f"torch's library refuses a tensor of shape {list(shape)}")
        return handle.value

    def describe(self, handle: int) -> "tuple[str, Shape, Shape, int]":
        """Datatype, shape, strides in items, and address of a tensor."""
        dim, dtype, address = c_int64(), c_int32(), c_void_p()
        sizes, strides = POINTER(c_int64)(), POINTER(c_int64)()
        for name, value in (
            ("get_dim", dim), ("get_dtype", dtype), ("get_data_ptr", address), ("get_sizes", sizes),
            ("get_strides", strides),
        ):  # fmt: skip
            getattr(self._torch, f"aoti_torch_{name}")(handle, byref(value))
        ranks = range(dim.value)
        shape, steps = tuple(sizes[i] for i in ranks), tuple(strides[i] for i in ranks)
        return self._names.get(dtype.value, ""), shape, steps, address.value or 0

    def delete(self, handle: int) -> None:
        self._torch.aoti_torch_delete_tensor_object(handle)


@cache
def libtorch(cuda: bool) -> LibTorch:
    return LibTorch(cuda)


def last_error(library: Any) -> str:
    """Last error message of a model's library; empty if it has none."""
    if not hasattr(library, "AOTInductorGetLastError"):
        return ""
    text = c_char_p()
    library.AOTInductorGetLastError(byref(text))
    return (text.value or b"").decode(errors="replace").strip().splitlines()[-1:][0] if text.value else ""


class ConstantPair(Structure):
    _fields_ = (("name", c_char_p), ("tensor", c_void_p))


class Container:
    """Container of one compiled model. `run` may be called by up to `models` threads at a time."""

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

    def bind_constants(self, stored: "Mapping[str, StoredTensor]", names: Mapping[str, str]) -> None:
        """Pass the addresses of the weights to the container, without a copy."""
        constants = self.constants()
        pairs = (ConstantPair * len(constants))()
        for pair, (own, original) in zip(pairs, constants, strict=True):
            weight = stored.get(names.get(original, original))
            if weight is None:
                why = f"neither the weights nor the package hold {original!r}"
                raise LoadFailed(f"{why}, which the compiled model needs")
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
