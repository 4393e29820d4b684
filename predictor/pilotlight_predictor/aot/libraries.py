"""torch's shared libraries, loaded without importing torch and without holding the GIL.

Python's own loading of a library holds the GIL during half a second of relocation; `dlopen` called through ctypes does
not. Imports the standard library only, since it runs first at a start.
"""

import ctypes
import os
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Final

from pilotlight_predictor.aot.machine import torch_root
from pilotlight_predictor.errors import LoadFailed

_LOADING: Final = Lock()
BASE: Final = ("libtorch_global_deps.so", "libc10.so", "libtorch_cpu.so")
GPU: Final = ("libc10_cuda.so", "libtorch_cuda.so")


def torch_library(cuda: bool) -> ctypes.CDLL:
    """Load torch's libraries and return the one with the C interface; concurrent callers wait."""
    with _LOADING:
        return _load(cuda)


@cache
def _load(cuda: bool) -> ctypes.CDLL:
    root = torch_root()
    if root is None:
        raise LoadFailed("compiled models need torch's library: pip install 'pilotlight[torch]'")
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
