"""cuBLAS and kernel warm-up on a GPU while weights are still being transferred.

The first matrix product of a process takes cuBLAS 100 ms to select and load kernels, and torch's first own kernels take
50 ms; the first request would wait for them. Called by aot/early_start.py after torch's libraries are loaded.
"""

from contextlib import ExitStack
from ctypes import byref, c_float, c_int, c_uint64, c_void_p
from pathlib import Path
from typing import Any, Final

from pilotlight_predictor.core.threads import mapped_library
from pilotlight_predictor.gpu.cuda_driver import DEVICE_SYNC_LOCK, Context
from pilotlight_predictor.gpu.safetensors_header import TYPES, TensorInfo, read_header, weight_files

# safetensors dtype → cuBLAS's cudaDataType, and bytes per item.
KINDS: Final = {"F16": (2, 2), "BF16": (14, 2), "F32": (0, 4)}
MAX_MATRIX_BYTES: Final = 256 << 20
RESERVED_BYTES: Final = 1 << 30  # reserve for cuBLAS's kernels and workspace, and the model's activations
TRANSPOSED, NOT_TRANSPOSED = 1, 0
COMPUTE_32F, DEFAULT_ALGORITHM = 68, -1


def warm_up_kernels(weights: Path, index: int) -> None:
    """Run a few common kernels in the dtype of the weights. torch must have been imported."""
    import torch

    matrix_info = first_matrix(weights)
    if matrix_info is None:
        return
    with torch.inference_mode():
        x = torch.zeros(64, device=f"cuda:{index}", dtype=getattr(torch, TYPES[matrix_info.dtype][0]))
        (torch.relu(x) * 0.5 + x).float().cpu()


def warm_up_cublas(weights: Path, index: int) -> bool:
    """Run one product with a matrix shaped like one of the model's.

    Return False if the model has none, cuBLAS is not loaded, or the GPU has too little memory beside the weights.
    """
    library, matrix_info = mapped_library("/libcublas.so"), first_matrix(weights)
    if library is None or matrix_info is None:
        return False
    context, size = Context(index), sum(file.stat().st_size for file in weight_files(weights))
    if not has_free_memory(context.memory_info(), size, sum(_buffer_sizes(matrix_info))):
        return False
    run_gemm(library, context, matrix_info)
    return True


def first_matrix(weights: Path) -> TensorInfo | None:
    """The first tensor that a product can be computed with; None if there is none."""
    tensors = (tensor for file in weight_files(weights) for tensor in read_header(file).tensors.values())
    return next((tensor for tensor in tensors if is_usable(tensor)), None)


def has_free_memory(memory: tuple[int, int], weights: int, needed: int) -> bool:
    """Whether `needed` bytes fit; `memory` is free and total. The weights may or may not be allocated already."""
    free, total = memory
    return min(free, total - weights) >= needed + RESERVED_BYTES


def run_gemm(library: Any, context: Context, matrix_info: TensorInfo) -> None:
    with ExitStack() as allocations:
        pointers = []
        for size in _buffer_sizes(matrix_info):
            pointers.append(context.allocate(size))
            allocations.callback(context.free, pointers[-1])
        _gemm(library, matrix_info, *pointers)


def _buffer_sizes(matrix_info: TensorInfo) -> tuple[int, int]:
    """Bytes of the matrix, and of both vectors together in the widest dtype."""
    return matrix_info.end - matrix_info.begin, 4 * sum(matrix_info.shape)


def is_usable(matrix_info: TensorInfo) -> bool:
    return (
        matrix_info.dtype in KINDS
        and len(matrix_info.shape) == 2
        and 0 < matrix_info.end - matrix_info.begin <= MAX_MATRIX_BYTES
    )


def _gemm(library: Any, matrix_info: TensorInfo, matrix: int, vectors: int) -> None:
    """Multiply one row by the matrix, as torch does for a linear layer; the memory's contents do not matter."""
    handle, one, none = c_void_p(), c_float(1), c_float(0)
    (rows, columns), (kind, size) = matrix_info.shape, KINDS[matrix_info.dtype]
    if library.cublasCreate_v2(byref(handle)):
        return
    library.cublasGemmEx.argtypes = [
        c_void_p, c_int, c_int, c_int, c_int, c_int, c_void_p, c_uint64, c_int, c_int, c_uint64, c_int, c_int,
        c_void_p, c_uint64, c_int, c_int, c_int, c_int,
    ]  # fmt: skip
    library.cublasDestroy_v2.argtypes = [c_void_p]
    library.cublasGemmEx(
        handle, TRANSPOSED, NOT_TRANSPOSED, rows, 1, columns, byref(one), matrix, kind, columns, vectors, kind, columns,
        byref(none), vectors + size * columns, kind, rows, COMPUTE_32F, DEFAULT_ALGORITHM,
    )  # fmt: skip
    with DEVICE_SYNC_LOCK:
        library.cublasDestroy_v2(handle)  # synchronises the device; kernels stay loaded
