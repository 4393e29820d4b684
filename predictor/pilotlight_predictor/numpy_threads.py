"""How many threads numpy's own BLAS has: one while a server starts, as many as asked once a model may compute by numpy.

OpenBLAS starts a thread for each processor of the machine as it is loaded, each of which spins for a while: on a node
with 64 of them and a limit of one, they use up what the start needs. The server itself multiplies no matrices.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, Final

SIZES: Final = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")


@contextmanager
def one_thread() -> Iterator[None]:
    """While numpy is imported; whoever set a number has that."""
    if any(name in os.environ for name in SIZES):
        yield
        return
    os.environ[SIZES[0]] = "1"
    try:
        yield
    finally:
        os.environ.pop(SIZES[0], None)


@cache
def give_back() -> None:
    """Once, before the first model that may compute by numpy: what such a model sets itself afterwards stands."""
    restore_numpy_threads(os.environ)


def restore_numpy_threads(environ: Mapping[str, str]) -> None:
    """OpenBLAS gets as many threads as it would have started itself, asked by the same variables."""
    library = openblas()
    if library is None:
        return
    asked = next((environ[name] for name in SIZES if environ.get(name, "").isdecimal()), "")
    count = int(asked or 0) or len(os.sched_getaffinity(0))
    with suppress(AttributeError):
        library.scipy_openblas_set_num_threads64_(count)


def openblas() -> Any | None:
    """numpy's own copy, if it is in memory: other builds of numpy bring another name, and keep one thread."""
    import ctypes

    with open("/proc/self/maps") as maps:
        path = next((line.split()[-1] for line in maps if "libscipy_openblas64_" in line), None)
    return ctypes.CDLL(path) if path is not None else None
