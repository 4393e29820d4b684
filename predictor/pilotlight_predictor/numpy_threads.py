"""Threads of numpy's BLAS: one during the cold start, the configured number once a model may compute with numpy.

OpenBLAS starts a spinning thread for each processor of the machine when it is loaded: on a node with 64 processors and
a CPU limit of one, these consume the CPU time of the start. The server itself multiplies no matrices.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, Final

SIZES: Final = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit OpenBLAS to one thread while numpy is imported, unless the environment sets a number."""
    if any(name in os.environ for name in SIZES):
        yield
        return
    os.environ[SIZES[0]] = "1"
    try:
        yield
    finally:
        os.environ.pop(SIZES[0], None)


@cache
def restore_once() -> None:
    """Restore the threads before the first model that may compute with numpy; only once, so that the number which a
    model sets itself is not overwritten."""
    restore_numpy_threads(os.environ)


def restore_numpy_threads(environ: Mapping[str, str]) -> None:
    """Set the number of threads that OpenBLAS would have started itself, from the same variables."""
    library = openblas()
    if library is None:
        return
    configured = next((environ[name] for name in SIZES if environ.get(name, "").isdecimal()), "")
    count = int(configured or 0) or len(os.sched_getaffinity(0))
    with suppress(AttributeError):
        library.scipy_openblas_set_num_threads64_(count)


def openblas() -> Any | None:
    """Return numpy's bundled OpenBLAS if it is loaded. Other builds of numpy have another name, and one thread."""
    import ctypes

    with open("/proc/self/maps") as maps:
        path = next((line.split()[-1] for line in maps if "libscipy_openblas64_" in line), None)
    return ctypes.CDLL(path) if path is not None else None
