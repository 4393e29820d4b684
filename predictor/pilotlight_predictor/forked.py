"""From fork to `main`: a child of the pilot light becomes the predictor that a fresh process would have been.

Two things stay the pilot light's: variables that only count when an interpreter starts (`preload.misfit` refuses
those), and the seed of Python's hashes, so that siblings order their sets alike.
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

from pilotlight_predictor.numpy_threads import restore_numpy_threads


class Errand(NamedTuple):
    """What a child shall become: arguments and environment of the predictor, and where its end is written down."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    exit_file: str


def errand(document: Mapping[str, Any]) -> Errand:
    """Raises ValueError with a sentence that names the field."""
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
    return Errand(argv, env, cwd, exit_file)


def become(task: Errand, log: int) -> NoReturn:
    """Runs the predictor to its end; nothing of the pilot light runs afterwards."""
    code = 1
    try:
        _take_on(task, log)
        from pilotlight_predictor.__main__ import main

        code = main(task.argv)
    except SystemExit as error:
        code = _exit_code(error)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _take_on(task: Errand, log: int) -> None:
    os.setsid()
    _redirect(log)
    os.chdir(task.cwd)
    os.environ.clear()
    os.environ.update(task.env)
    sys.argv[1:] = task.argv
    _show_command(task.argv)
    if not sys.flags.safe_path:  # `python -m` looks for modules in its working directory first
        sys.path[0] = task.cwd
    time.tzset()
    _reseed()
    restore_numpy_threads(task.env)
    gc.enable()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # last: an early SIGTERM ends the child as it should


def _show_command(argv: list[str]) -> None:
    """`ps` shall show a predictor and not a second pilot light: the kernel shows what lies where exec put the words."""
    import ctypes

    with suppress(OSError, ValueError, IndexError), open("/proc/self/stat", "rb") as stat:
        start, end = map(int, stat.read().rpartition(b") ")[2].split()[45:47])
        if start:
            words = "\0".join([sys.executable, "-m", "pilotlight_predictor", *argv]).encode(errors="surrogateescape")
            ctypes.memmove(start, words[: end - start - 1].ljust(end - start, b"\0"), end - start)


def _redirect(log: int) -> None:
    """stdin reads nothing; what is printed goes to the log, line by line."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    for descriptor in {nothing, log} - {0, 1, 2}:
        os.close(descriptor)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)


def _reseed() -> None:
    """Siblings must not draw the same numbers. `random` sees to itself, but a model may have seeded it again."""
    random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def _exit_code(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    sys.stderr.write(f"{error.code}\n")
    return 1
