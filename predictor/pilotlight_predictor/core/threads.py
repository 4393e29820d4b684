"""Blocking work off the event loop, in daemon threads: a load that hangs must not prevent the process's exit.

Also the process-wide settings of threads: the GIL's switch interval and the number of BLAS threads.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from threading import Lock, Thread
from traceback import clear_frames
from typing import Any, Final, TypeVar

T = TypeVar("T")

STACK_SLOTS: Final = (1 << 15) + 200  # pointers; above a power of two, because a chunk is rounded up to the next one
# A thread that launches a batch needs the GIL for microseconds; a busy event loop releases it only after Python's
# switch interval of 5 ms, longer than many batches take.
LAUNCH_INTERVAL_S: Final = 0.0005
LOADED_INTERVAL_S: Final = 0.0002  # duration of a small request: much less would interrupt requests themselves
BLAS_THREAD_VARIABLES: Final = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")


def in_thread(work: Callable[[], T], unclaimed: Callable[[T], None] | None = None) -> asyncio.Future[T]:
    """Run `work` in a thread of its own. If the future is cancelled, `unclaimed` frees a late result."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    Thread(target=_run, args=(loop, future, work, unclaimed), name="pilotlight-load", daemon=True).start()
    return future


def _run(
    loop: asyncio.AbstractEventLoop,
    future: asyncio.Future[T],
    work: Callable[[], T],
    unclaimed: Callable[[T], None] | None,
) -> None:
    """An error's frames refer to this one: with the future, which holds the error, that would be a reference cycle
    that holds all data of `work` until the next garbage collection. So frames are cleared and names deleted."""
    try:
        result = work()
    except BaseException as error:  # SystemExit too: the awaiting side handles it
        problem = error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
        clear_frames(error.__traceback__)
        _post(loop, future, partial(future.set_exception, problem))
        del problem
    else:
        free = partial(unclaimed, result) if unclaimed is not None else None
        _post(loop, future, partial(future.set_result, result), free)
    finally:
        del future, work


def _post(
    loop: asyncio.AbstractEventLoop,
    future: asyncio.Future[T],
    settle: Callable[[], None],
    free: Callable[[], None] | None = None,
) -> None:
    """Settle the future on the loop, where it is known whether it was cancelled; free a late result in a thread."""

    def settle_if_pending() -> None:
        if not future.done():
            settle()
        elif free is not None:
            Thread(target=free, name="pilotlight-free", daemon=True).start()

    try:
        loop.call_soon_threadsafe(settle_if_pending)
    except RuntimeError:  # the loop is closed
        if free is not None:
            free()


def with_deep_stack(work: Callable[[], T]) -> T:
    """Call `work` with a large chunk of Python frame memory, for a thread that imports.

    CPython allocates a thread's frames in chunks of 16 KB; the next is mapped when a call does not fit, and unmapped
    when that call returns. Deep imports that oscillate around the end of a chunk pay for it at every call: 3 to 10 %
    of a start. A frame with a large stack size gets a larger chunk and leaves half of it, 250 KB, to the calls within;
    only used pages are resident.
    """
    return work()


with_deep_stack.__code__ = with_deep_stack.__code__.replace(co_stacksize=STACK_SLOTS)


def in_threads(work: Sequence[Callable[[], object]], name: str) -> None:
    """Run all in parallel; raise the first failure when all have ended."""
    failed: list[Exception] = []

    def run(one: Callable[[], object]) -> None:
        try:
            one()
        except Exception as error:
            failed.append(error)

    threads = [Thread(target=run, args=(one,), name=name, daemon=True) for one in work[1:]]
    for thread in threads:
        thread.start()
    for one in work[:1]:
        run(one)
    for thread in threads:
        thread.join()
    if failed:
        del failed[1:]  # with pop: errors left in this frame would form a cycle with it through their tracebacks
        raise failed.pop()


class ThreadLimiter:
    """Threads for work of requests that is too long for the event loop, at most `concurrency` at a time."""

    def __init__(self, concurrency: int) -> None:
        self._slots = asyncio.Semaphore(concurrency)
        self._turn = asyncio.Semaphore(1)
        self._helper: Any = None

    async def run(self, work: Callable[[], T]) -> T:
        async with self._slots:
            return await in_thread(work)

    async def run_in_process(self, function: Callable[..., T], *args: Any) -> T:
        """Run a function of a module in the helper process, for work in which a single call would hold the GIL."""
        async with self._turn:
            if self._helper is None:
                from pilotlight_predictor.core.codec_process import CodecProcess

                self._helper = CodecProcess()
            return await in_thread(partial(self._helper.call, function, *args))


class _SwitchInterval:
    """The process-wide switch interval: the first of several works shortens it, the last one restores it.

    A thread releases the GIL after another has waited for the interval, 5 ms by default, and a request acquires it
    several times: during an import it would take 10 ms instead of 0.25 ms.
    """

    def __init__(self) -> None:
        self._works, self._usual, self._lock = 0, 0.0, Lock()

    def begin(self) -> None:
        with self._lock:
            if self._works == 0:
                self._usual = sys.getswitchinterval()
                if self._usual > LOADED_INTERVAL_S:
                    sys.setswitchinterval(LOADED_INTERVAL_S)
            self._works += 1

    def end(self, _: object) -> None:
        with self._lock:
            self._works -= 1
            if self._works == 0:
                sys.setswitchinterval(self._usual)

    def shorten(self, seconds: float = LAUNCH_INTERVAL_S) -> None:
        """Limit the interval permanently, from any thread, also while work runs that will restore it."""
        with self._lock:
            self._usual = min(seconds, self._usual if self._works else sys.getswitchinterval())
            if self._works == 0:
                sys.setswitchinterval(self._usual)


_interval: Final = _SwitchInterval()
limit_switch_interval: Final = _interval.shorten


def in_thread_under_load(work: Callable[[], T], unclaimed: Callable[[T], None] | None = None) -> asyncio.Future[T]:
    """As `in_thread`, with a short switch interval. Called on the event loop, where the future is settled too."""
    _interval.begin()
    try:
        future = in_thread(partial(with_deep_stack, work), unclaimed)
    except BaseException:
        _interval.end(None)
        raise
    future.add_done_callback(_interval.end)
    return future


@contextmanager
def single_blas_thread() -> Iterator[None]:
    """Limit OpenBLAS to one thread while numpy is imported, unless the environment sets a number.

    Else it starts a spinning thread for each processor of the machine, which on a node with 64 processors and a CPU
    limit of one consume the CPU time of the start. The server itself multiplies no matrices.
    """
    if any(name in os.environ for name in BLAS_THREAD_VARIABLES):
        yield
        return
    os.environ[BLAS_THREAD_VARIABLES[0]] = "1"
    try:
        yield
    finally:
        os.environ.pop(BLAS_THREAD_VARIABLES[0], None)


@cache
def ensure_blas_threads() -> None:
    """Restore the threads before the first model that may compute with numpy; only once, so that the number which a
    model sets itself is not overwritten."""
    restore_blas_threads(os.environ)


def restore_blas_threads(environ: Mapping[str, str]) -> None:
    """Set the number of threads that OpenBLAS would have started itself, from the same variables."""
    library = mapped_library("libscipy_openblas64_")  # numpy's own; other builds have another name, and one thread
    if library is None:
        return
    configured = next((environ[name] for name in BLAS_THREAD_VARIABLES if environ.get(name, "").isdecimal()), "")
    count = int(configured or 0) or len(os.sched_getaffinity(0))
    with suppress(AttributeError):
        library.scipy_openblas_set_num_threads64_(count)


def mapped_library(name: str, maps: str = "/proc/self/maps") -> Any | None:
    """Return the library that is mapped into this process already, by a part of its path; None if there is none."""
    import ctypes

    with open(maps) as lines:
        path = next((line.split()[-1] for line in lines if name in line), None)
    return ctypes.CDLL(path) if path is not None else None
