"""The first product of matrices on a GPU, asked for while weights are still on their way to it.

cuBLAS takes a tenth of a second for the first one of a process, to choose and load its kernels, and torch half of that
for the first of its own; a model's first answer would wait for them. Called by aot/early.py once torch's libraries,
which bring cuBLAS, are in memory.
"""

import ctypes
from contextlib import ExitStack
from ctypes import byref, c_float, c_int, c_uint64, c_void_p
from pathlib import Path
from typing import Any, Final

from pilotlight_predictor.weights.cuda_driver import WHOLE_DEVICE, Context
from pilotlight_predictor.weights.safetensors_file import Place, files_of, read

# The format's name of a type: what cuBLAS calls it, and how many bytes an item has.
KINDS: Final = {"F16": (2, 2), "BF16": (14, 2), "F32": (0, 4)}
NAMES: Final = {"F16": "float16", "BF16": "bfloat16", "F32": "float32"}
MOST_BYTES: Final = 256 << 20
BESIDE: Final = 1 << 30  # for cuBLAS's kernels and workspace, and what the model computes in
TRANSPOSED, AS_IT_IS = 1, 0
IN_FP32, ANY_WAY = 68, -1


def compute_once(weights: Path, index: int) -> None:
    """A few kernels that most models have, in the type of their weights. torch must have been imported."""
    import torch

    place = a_matrix(weights)
    if place is None:
        return
    with torch.inference_mode():
        x = torch.zeros(64, device=f"cuda:{index}", dtype=getattr(torch, NAMES[place.dtype]))
        (torch.relu(x) * 0.5 + x).float().cpu()


def multiply_once(weights: Path, index: int) -> bool:
    """With a matrix of the kind that the model has; False where it has none, cuBLAS is not in memory, or the GPU has
    little beside the weights, which may still be about to take theirs."""
    library, place = cublas(), a_matrix(weights)
    if library is None or place is None:
        return False
    context, size = Context(index), sum(file.stat().st_size for file in files_of(weights))
    if not has_room(context.memory(), size, sum(_sizes(place))):
        return False
    multiply(library, context, place)
    return True


def a_matrix(weights: Path) -> Place | None:
    """The first of the kind that a product can be made with."""
    return next((found for file in files_of(weights) for found in read(file).tensors.values() if fits(found)), None)


def has_room(memory: tuple[int, int], weights: int, needed: int) -> bool:
    """`memory` as the device tells it: free, and all. Whether the weights are in what is free is not known."""
    free, total = memory
    return min(free, total - weights) >= needed + BESIDE


def multiply(library: Any, context: Context, place: Place) -> None:
    with ExitStack() as taken:
        pointers = []
        for size in _sizes(place):
            pointers.append(context.allocate(size))
            taken.callback(context.free, pointers[-1])
        _multiply(library, place, *pointers)


def _sizes(place: Place) -> tuple[int, int]:
    """Of the matrix, and of the two vectors together, in the widest type."""
    return place.end - place.begin, 4 * sum(place.shape)


def fits(place: Place) -> bool:
    return place.dtype in KINDS and len(place.shape) == 2 and 0 < place.end - place.begin <= MOST_BYTES


def cublas(maps: Path = Path("/proc/self/maps")) -> Any | None:
    """The one that is in memory already, whatever its version and wherever it lies."""
    with maps.open() as lines:
        path = next((line.split()[-1] for line in lines if "/libcublas.so" in line), None)
    return ctypes.CDLL(path) if path is not None else None


def _multiply(library: Any, place: Place, matrix: int, vectors: int) -> None:
    """One row times the matrix, as torch asks for a linear layer; what lies in memory does not matter."""
    handle, one, none = c_void_p(), c_float(1), c_float(0)
    (rows, columns), (kind, size) = place.shape, KINDS[place.dtype]
    if library.cublasCreate_v2(byref(handle)):
        return
    library.cublasGemmEx.argtypes = [
        c_void_p, c_int, c_int, c_int, c_int, c_int, c_void_p, c_uint64, c_int, c_int, c_uint64, c_int, c_int,
        c_void_p, c_uint64, c_int, c_int, c_int, c_int,
    ]  # fmt: skip
    library.cublasDestroy_v2.argtypes = [c_void_p]
    library.cublasGemmEx(
        handle, TRANSPOSED, AS_IT_IS, rows, 1, columns, byref(one), matrix, kind, columns, vectors, kind, columns,
        byref(none), vectors + size * columns, kind, rows, IN_FP32, ANY_WAY,
    )  # fmt: skip
    with WHOLE_DEVICE:
        library.cublasDestroy_v2(handle)  # waits for the product, and for all else; kernels stay loaded
