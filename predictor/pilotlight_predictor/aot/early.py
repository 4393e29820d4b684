"""What a model needs longest, begun as soon as the port is open: its runtime's libraries, and weights for a GPU.

Those of torch take half a second in which the interpreter is not needed, so they run beside its imports; but the
dynamic loader has one lock, and an import that meets it waits with the interpreter's own in hand, so extension modules
come first (`libraries`). Whoever loads the model finds the weights by `taken`; where the model is another after all
they are dropped again. onnxruntime's one library is only read from the disk, for a node's first start: loading it takes
a processor, and so would gain nothing.
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

from pilotlight_predictor.numpy_threads import one_thread

if TYPE_CHECKING:
    from pilotlight_predictor.settings import ModelSettings
    from pilotlight_predictor.weights.moving import Moving

FIRST_GPU: Final = Path("/dev/nvidia0")
TORCH: Final = ("model.safetensors", "model.pt2", "model.pt")
# All that the dynamic loader brings on the way to a torch model, but for torch.
EXTENSIONS: Final = (
    "numpy", "orjson", "msgspec", "bisect", "bz2", "ctypes", "decimal", "hashlib", "lzma", "mmap", "uuid", "zlib",
)  # fmt: skip
_begun: dict[tuple[Path, int], "Moving"] = {}
_threads: list[Thread] = []
_wanted: list["Wanted"] = []
_over = Event()


class Wanted(NamedTuple):
    """Libraries that were found to be needed; `weights` are those of a model that runs on a GPU. Where torch itself
    was `there` already, in a fork of the pilot light, it may be used."""

    cuda: bool
    compiled: bool
    there: bool
    weights: Path | None
    device: int


def begin(model: "ModelSettings", gpu: Path = FIRST_GPU) -> bool:
    """For one model given by its path, on the device that it will be placed on; anything else is left to the load.

    Whether torch's `libraries` are to follow: some builds read the same variables as numpy's.
    """
    if not model.path or "://" in model.path:
        return False
    path = Path(model.path)
    if path.suffix == ".onnx" and "onnxruntime" not in sys.modules:
        _threads.append(_start(_read_onnxruntime))
        return False
    file = path if path.is_file() else next((path / name for name in TORCH if (path / name).is_file()), None)
    if file is None or file.suffix not in {".safetensors", ".pt2", ".pt"}:
        return False
    cuda = model.device != "cpu" and gpu.exists()
    _threads.append(_start(partial(_begin, model, file, cuda)))
    return True


def libraries() -> None:
    """After `begin` said yes, by the thread that is about to import the server."""
    with one_thread():  # over before torch's libraries are loaded: some builds of it read the same variables
        for name in EXTENSIONS:
            with suppress(ImportError):
                import_module(name)
    _start(partial(_load, tuple(_threads)))


def _start(work: Callable[[], None]) -> Thread:
    thread = Thread(target=work, name="pilotlight-early", daemon=True)
    thread.start()
    return thread


def _read_onnxruntime() -> None:
    """Tells the kernel that its 30 MB will be needed, two thirds of them, a tenth of a second before they are."""
    from importlib.util import find_spec

    found = find_spec("onnxruntime")
    if found is None or found.origin is None:
        return
    with suppress(OSError):
        for library in (Path(found.origin).parent / "capi").glob("onnxruntime_pybind11_state*.so"):
            with library.open("rb", buffering=0) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)


def _begin(model: "ModelSettings", file: Path, cuda: bool) -> None:
    """A failure is the load's to meet again and to tell."""
    from pilotlight_predictor.aot.package import choose

    with suppress(Exception):
        index = int(model.device.partition(":")[2] or 0)
        plain = file.suffix == ".safetensors" and model.precision == "auto"
        found = choose(file, "cuda" if cuda else "cpu", index, model.trusted_compiled) if plain else None
        compiled, moves = isinstance(found, tuple), cuda and plain and not _over.is_set()
        there = not compiled and "torch" in sys.modules
        _wanted.append(Wanted(cuda, compiled, there, file if moves else None, index))
        if moves:
            _begun[file.parent, index] = _moving(file, index, not compiled and not there, model.parks)


def _load(before: tuple[Thread, ...]) -> None:
    """The libraries, and then the GPU's first product and first kernels, while weights still travel."""
    from pilotlight_predictor.aot.libraries import torch_library, warm_torch
    from pilotlight_predictor.weights.first_product import compute_once, multiply_once

    for thread in before:
        thread.join()
    with suppress(Exception):
        for wanted in _wanted:
            torch_library(wanted.cuda) if wanted.compiled else warm_torch(wanted.cuda)
            if wanted.weights is not None:
                multiplied = multiply_once(wanted.weights, wanted.device)
                if multiplied and wanted.there:
                    compute_once(wanted.weights, wanted.device)


def _moving(file: Path, index: int, beside_import: bool, parks: bool) -> "Moving":
    from pilotlight_predictor.weights.moving import Moving

    return Moving(file, index, beside_import, parks).begin()


def forget() -> None:
    """After the first load: what it did not take is of no use."""
    _over.set()
    _begun.clear()


def taken(weights: Path, index: int) -> "Moving | None":
    """Once: the next load of the model has to move its weights itself."""
    for thread in _threads:
        thread.join()
    folder = weights if weights.is_dir() else weights.parent
    return _begun.pop((folder, index), None)
