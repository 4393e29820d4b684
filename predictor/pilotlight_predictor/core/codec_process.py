"""Helper process for decoding: a JSON library holds the GIL for a whole call, 5 s for 64 MiB of keys, in any thread.

It is started on first need, and ends when it is idle or when its parent ends. Its memory is limited: 64 MiB of nested
lists would take gigabytes. Results come back as a pickle, which the parent reads from the pipe in frames of 64 KiB,
so that other threads run in between.
"""

import os
import pickle
import sys
from collections.abc import Callable
from contextlib import suppress
from subprocess import PIPE, Popen
from threading import Lock, Thread
from typing import Any, Final, NamedTuple, TypeVar

from pilotlight_predictor.errors import RequestTooLarge

T = TypeVar("T")
IDLE_S: Final = 60.0
MAX_MEMORY: Final = 1 << 30  # bytes: twice what 64 MiB of numbers take in the worst case


class Failure(NamedTuple):
    """An exception as it is sent: those of the tree may have constructors that pickle cannot call."""

    kind: type[Exception]
    args: tuple[Any, ...]
    fields: dict[str, Any]

    def exception(self) -> Exception:
        error = self.kind.__new__(self.kind, *self.args)
        error.__dict__.update(self.fields)
        return error


class CodecProcess:
    """At most one process, which serves one call at a time."""

    def __init__(self) -> None:
        self._process: Popen[bytes] | None = None
        self._lock = Lock()

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """Return function(*args), computed by the process. Raise what it raises, and RequestTooLarge if it runs out of
        memory. `function` must be a name in a module. Called in a thread."""
        with self._lock:
            if self._process is not None:
                try:
                    return self._call(self._process, function, args)
                except (OSError, EOFError):  # it had ended, being idle
                    self.close()
            try:
                process = self._process = _start()
            except OSError:  # no process may be started here
                return function(*args)
            try:
                return self._call(process, function, args)
            except (OSError, EOFError):
                self.close()
                raise RequestTooLarge(_TOO_LARGE) from None

    def _call(self, process: "Popen[bytes]", function: Callable[..., T], args: tuple[Any, ...]) -> T:
        assert process.stdin is not None
        assert process.stdout is not None
        sent = [pickle.PickleBuffer(arg) if isinstance(arg, memoryview) else arg for arg in args]
        pickle.dump((function, sent), process.stdin, 5)
        process.stdin.flush()
        result = pickle.load(process.stdout)  # noqa: S301 - written by this module
        if isinstance(result, Failure):
            raise result.exception()
        return result  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the process; a later call starts another."""
        process, self._process = self._process, None
        for pipe in (process.stdin, process.stdout) if process is not None else ():
            with suppress(OSError):
                pipe.close()  # type: ignore[union-attr]

    def __del__(self) -> None:
        self.close()


_TOO_LARGE: Final = (
    f"decoding the JSON takes more than {MAX_MEMORY >> 30} GiB of memory: send binary tensors or a smaller request"
)


def _start() -> "Popen[bytes]":
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "-m", __name__]
    process = Popen(command, stdin=PIPE, stdout=PIPE, env=environment)  # noqa: S603 - this interpreter and module
    Thread(target=process.wait, name="pilotlight-codec", daemon=True).start()  # leave no zombie
    return process


def _serve() -> None:
    """Answer calls from stdin on stdout, until it is closed or nothing has come for IDLE_S."""
    import gc
    import signal
    from resource import RLIMIT_DATA, getrlimit, setrlimit
    from select import select

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the parent finishes its requests
    _, hard = getrlimit(RLIMIT_DATA)
    setrlimit(RLIMIT_DATA, (MAX_MEMORY if hard < 0 else min(MAX_MEMORY, hard), hard))
    gc.disable()  # decoders make no cycles
    with suppress(EOFError, BrokenPipeError):  # the parent has ended
        while select([sys.stdin], [], [], IDLE_S)[0]:
            function, args = pickle.load(sys.stdin.buffer)  # noqa: S301 - written by this module
            pickle.dump(_result(function, args), sys.stdout.buffer, 5)
            sys.stdout.buffer.flush()
            del function, args


def _result(function: Callable[..., Any], args: list[Any]) -> Any:
    try:
        return function(*args)
    except MemoryError:
        return Failure(RequestTooLarge, (_TOO_LARGE,), {})
    except Exception as error:
        return Failure(type(error), error.args, error.__dict__)


if __name__ == "__main__":
    # Under its own name, which the classes in the pickles have.
    from pilotlight_predictor.core import codec_process

    codec_process._serve()
