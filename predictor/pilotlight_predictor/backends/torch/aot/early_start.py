"""Early start of the slowest parts of a load, right after the port is open: runtime libraries, and weights for a GPU.

Loading torch's libraries takes half a second without the GIL, so it runs in parallel with the server's imports. The
dynamic loader has one lock, and an import that waits for it holds the GIL; so extension modules are imported first
(`load_libraries`). The load of the model takes the weights by `take_transfer`; unused transfers are dropped.
onnxruntime's library is only read ahead from the disk: loading it is CPU-bound and would gain nothing.
"""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Final, NamedTuple

from pilotlight_predictor.core.threads import single_blas_thread

if TYPE_CHECKING:
    from pilotlight_predictor.config import ModelSettings
    from pilotlight_predictor.gpu.safetensors_upload import WeightTransfer

FIRST_GPU: Final = Path("/dev/nvidia0")
TORCH: Final = ("model.safetensors", "model.pt2", "model.pt")
# Extension modules that a torch model needs, except torch.
EXTENSIONS: Final = (
    "numpy", "orjson", "msgspec", "bisect", "bz2", "ctypes", "decimal", "hashlib", "lzma", "mmap", "uuid", "zlib",
)  # fmt: skip
_transfers: dict[tuple[Path, int], "WeightTransfer"] = {}
_threads: list[Thread] = []
_loads: list["EarlyLoad"] = []
_closed = Event()


class EarlyLoad(NamedTuple):
    """Libraries and weights of one model.

    `weights` are those of a model on a GPU. torch may be used if it is imported already, in a fork of the pilot light.
    """

    cuda: bool
    compiled: bool
    torch_imported: bool
    weights: Path | None
    device: int


def start(model: "ModelSettings", gpu: Path = FIRST_GPU) -> bool:
    """Start for a single model given by a local path; anything else is left to the load.

    Return whether `load_libraries` must follow, for torch.
    """
    if not model.path or "://" in model.path:
        return False
    path = Path(model.path)
    if path.suffix == ".onnx" and "onnxruntime" not in sys.modules:
        _threads.append(_start_thread(_read_onnxruntime))
        return False
    file = path if path.is_file() else next((path / name for name in TORCH if (path / name).is_file()), None)
    if file is None or file.suffix not in {".safetensors", ".pt2", ".pt"}:
        return False
    cuda = model.device != "cpu" and gpu.exists()
    _threads.append(_start_thread(partial(_start_load, model, file, cuda)))
    return True


def load_libraries() -> None:
    """Load torch's libraries in a thread, after `start` returned True and before the server is imported."""
    with single_blas_thread():  # ends before torch's libraries are loaded: some of its builds read the same variables
        for name in EXTENSIONS:
            with suppress(ImportError):
                import_module(name)
    _start_thread(partial(_load, tuple(_threads)))


def _start_thread(work: Callable[[], None]) -> Thread:
    thread = Thread(target=work, name="pilotlight-early", daemon=True)
    thread.start()
    return thread


def _read_onnxruntime() -> None:
    """Make the kernel read ahead onnxruntime's library of 30 MB, 100 ms before it is needed."""
    from importlib.util import find_spec

    spec = find_spec("onnxruntime")
    if spec is None or spec.origin is None:
        return
    with suppress(OSError):
        for library in (Path(spec.origin).parent / "capi").glob("onnxruntime_pybind11_state*.so"):
            with library.open("rb", buffering=0) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)


def _start_load(model: "ModelSettings", file: Path, cuda: bool) -> None:
    """Start the transfer of weights; failures are ignored, since the load will raise them."""
    from pilotlight_predictor.backends.torch.aot.package_lookup import find_package

    with suppress(Exception):
        index = int(model.device.partition(":")[2] or 0)
        plain = file.suffix == ".safetensors" and model.precision == "auto"
        package = find_package(file, "cuda" if cuda else "cpu", index, model.trusted_compiled) if plain else None
        compiled, transfers = isinstance(package, tuple), cuda and plain and not _closed.is_set()
        torch_imported = not compiled and "torch" in sys.modules
        _loads.append(EarlyLoad(cuda, compiled, torch_imported, file if transfers else None, index))
        if transfers:
            from pilotlight_predictor.gpu.safetensors_upload import WeightTransfer

            during_import = not compiled and not torch_imported
            _transfers[file.parent, index] = WeightTransfer(file, index, during_import, model.parks).start()


def _load(before: tuple[Thread, ...]) -> None:
    """Load the libraries, then warm up cuBLAS and kernels while weights are being transferred."""
    from pilotlight_predictor.backends.torch.aot.libtorch import preload_torch, torch_library
    from pilotlight_predictor.gpu.cublas_warmup import warm_up_cublas, warm_up_kernels

    for thread in before:
        thread.join()
    with suppress(Exception):
        for load in _loads:
            torch_library(load.cuda) if load.compiled else preload_torch(load.cuda)
            if load.weights is not None:
                warm = warm_up_cublas(load.weights, load.device)
                if warm and load.torch_imported:
                    warm_up_kernels(load.weights, load.device)


def discard_unused() -> None:
    """Drop transfers that the first load did not take."""
    _closed.set()
    _transfers.clear()


def take_transfer(weights: Path, index: int) -> "WeightTransfer | None":
    """Return the transfer of these weights once; later loads start their own."""
    for thread in _threads:
        thread.join()
    folder = weights if weights.is_dir() else weights.parent
    return _transfers.pop((folder, index), None)
