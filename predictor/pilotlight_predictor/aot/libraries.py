"""torch's shared libraries, loaded without Python's torch, and without holding up other threads meanwhile.

Python's own ways to load a library keep the interpreter's lock while half a second of relocation goes by; a call of
`dlopen` as a foreign function does not. Standard library only, for the first moments of a start.
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
    """The one that has the C interface; who comes while another loads it waits for that."""
    with _LOADING:
        return _loaded(cuda)


@cache
def _loaded(cuda: bool) -> ctypes.CDLL:
    root = torch_root()
    if root is None:
        raise LoadFailed("compiled models need torch's library: pip install 'pilotlight[torch]'")
    names = (*BASE, *(GPU if cuda else ()), "libtorch.so")
    loaded = {name: opened(root / "lib" / name, os.RTLD_GLOBAL) for name in names}
    return loaded["libtorch_cpu.so"]


def warm_torch(cuda: bool) -> None:
    """What `import torch` will load is loaded by the time that it gets there; its failures are the import's to tell."""
    root = torch_root()
    if root is None:
        return
    with suppress(LoadFailed):
        for name in (*BASE, *(GPU if cuda else ()), "libtorch.so", "libtorch_python.so"):
            opened(root / "lib" / name, os.RTLD_GLOBAL if name == BASE[0] else os.RTLD_LOCAL)


def opened(path: Path, mode: int) -> ctypes.CDLL:
    system = ctypes.CDLL(None)
    system.dlopen.restype, system.dlopen.argtypes = ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_int]
    system.dlerror.restype = ctypes.c_char_p
    handle = system.dlopen(os.fsencode(path), mode | os.RTLD_NOW)
    if not handle:
        said = (system.dlerror() or b"").decode(errors="replace")
        raise LoadFailed(f"{path.name} cannot be loaded: {said}")
    return ctypes.CDLL(str(path), handle=handle)
