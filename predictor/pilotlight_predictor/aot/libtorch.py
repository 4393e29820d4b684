"""torch's C++ library through its C ABI, without importing torch. Used by container.py."""

from ctypes import POINTER, byref, c_char_p, c_int32, c_int64, c_void_p
from functools import cache
from typing import Any

from pilotlight_predictor.aot.libraries import torch_library
from pilotlight_predictor.backends.torch_tensors import TORCH_NAMES
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.tensors import Shape


class LibTorch:
    """Tensors are handles, created from our memory or returned by a model; the caller deletes them."""

    def __init__(self, cuda: bool) -> None:
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
        self._names = {self.dtype(name): datatype for datatype, name in TORCH_NAMES.items() if self.has(name)}

    def has(self, name: str) -> bool:
        return hasattr(self._torch, f"aoti_torch_dtype_{name}")

    def dtype(self, name: str) -> int:
        return int(getattr(self._torch, f"aoti_torch_dtype_{name}")())

    def create_tensor(self, address: int, shape: Shape, dtype: int, index: int) -> int:
        """Create a tensor over contiguous memory, which must outlive it."""
        sizes = (c_int64 * len(shape))(*shape)
        strides = (c_int64 * len(shape))(*_strides(shape))
        handle = c_void_p()
        code = self._torch.aoti_torch_create_tensor_from_blob(
            address, len(shape), sizes, strides, 0, dtype, self._kind, index, byref(handle)
        )
        if code or handle.value is None:
            raise LoadFailed(f"torch's library refuses a tensor of shape {list(shape)}")
        return handle.value

    def describe(self, handle: int) -> tuple[str, Shape, Shape, int]:
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


def _strides(shape: Shape) -> list[int]:
    steps, step = [], 1
    for dim in reversed(shape):
        steps.append(step)
        step *= max(dim, 1)
    return steps[::-1]


def last_error(library: Any) -> str:
    """Last error message of a model's library; empty if it has none."""
    if not hasattr(library, "AOTInductorGetLastError"):
        return ""
    text = c_char_p()
    library.AOTInductorGetLastError(byref(text))
    return (text.value or b"").decode(errors="replace").strip().splitlines()[-1:][0] if text.value else ""
