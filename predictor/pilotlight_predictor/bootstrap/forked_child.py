"""Child side of a pilot light's fork: set up the process as a fresh one and run the predictor.

Two things are inherited: environment variables read only at interpreter start (preload.py refuses requests that differ
in those), and Python's hash seed, so siblings order sets alike.
"""

import gc
import os
import random
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

from pilotlight_predictor.bootstrap import run_command
from pilotlight_predictor.core.threads import restore_blas_threads


class ForkRequest(NamedTuple):
    """Arguments, environment and working directory of a predictor, and the file for its exit code."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    exit_file: str


def parse_request(document: Mapping[str, Any]) -> ForkRequest:
    """Parse a fork request. Raises ValueError with a sentence that names the field."""
    argv, env = document.get("argv"), document.get("env")
    cwd, exit_file = document.get("cwd"), document.get("exit_file")
    if not isinstance(argv, list) or not all(isinstance(word, str) for word in argv):
        raise ValueError("argv must be a list of strings: the predictor's arguments")
    if not isinstance(env, dict) or not all(isinstance(value, str) for value in env.values()):
        raise ValueError("env must be an object of strings: the whole environment")
    if not isinstance(cwd, str) or not os.path.isdir(cwd):
        raise ValueError(f"cwd = {cwd!r}, must be a folder that exists")
    if not isinstance(exit_file, str) or not os.path.isabs(exit_file):
        raise ValueError(f"exit_file = {exit_file!r}, must be an absolute path")
    return ForkRequest(argv, env, cwd, exit_file)


def run_predictor(request: ForkRequest, log_descriptor: int) -> NoReturn:
    """Run the predictor and exit the process; nothing of the pilot light runs afterwards."""
    code = 1
    try:
        _set_up_process(request, log_descriptor)
        code = run_command(request.argv)
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            code = error.code or 0
        else:
            sys.stderr.write(f"{error.code}\n")
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _set_up_process(request: ForkRequest, log_descriptor: int) -> None:
    os.setsid()
    _redirect(log_descriptor)
    os.chdir(request.cwd)
    os.environ.clear()
    os.environ.update(request.env)
    sys.argv[1:] = request.argv
    _set_process_title(request.argv)
    if not sys.flags.safe_path:  # `python -m` searches its working directory first
        sys.path[0] = request.cwd
    time.tzset()
    random.seed()  # Python reseeds after a fork, unless a model seeded it; siblings must draw different numbers
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    restore_blas_threads(request.env)
    gc.enable()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # last: a pending SIGTERM now ends the child


def _set_process_title(argv: list[str]) -> None:
    """Make `ps` show a predictor: overwrite the memory that /proc/self/cmdline reads, found in /proc/self/stat."""
    import ctypes

    with suppress(OSError, ValueError, IndexError), open("/proc/self/stat", "rb") as stat:
        start, end = map(int, stat.read().rpartition(b") ")[2].split()[45:47])
        if start:
            title = "\0".join([sys.executable, "-m", "pilotlight_predictor", *argv]).encode(errors="surrogateescape")
            ctypes.memmove(start, title[: end - start - 1].ljust(end - start, b"\0"), end - start)


def _redirect(log: int) -> None:
    """Redirect stdin to /dev/null, stdout and stderr to the log, line-buffered."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    for descriptor in {null, log} - {0, 1, 2}:
        os.close(descriptor)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)
