"""Profiles what torch computes between a start and a stop: `/api/profile?cmd=start|stop`.

The server has one profiler, as its ancestor had. It sees all threads, so those of the instances too; only a server
that has torch in memory can be profiled. Called in a thread: a long profile takes its time to be summed up.
"""

import sys
from threading import Lock
from typing import Any, Final

from pilotlight_predictor.errors import BadRequest, Unsupported

ROWS: Final = 40
_turn = Lock()
_running: list[Any] = []  # the profiler between start and stop


def obey(command: str) -> str:
    """What to answer: nothing to start, and to stop a table of where the time went."""
    with _turn:
        if command == "stop":
            return _stop()
        _start()
        return ""


def _stop() -> str:
    if not _running:
        raise BadRequest("no profile is running: ask with cmd=start first")
    profiler = _running.pop()
    profiler.__exit__(None, None, None)
    return str(profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=ROWS)) + "\n"


def _start() -> None:
    if _running:
        raise BadRequest("a profile is running already: ask with cmd=stop first")
    if "torch" not in sys.modules:
        raise Unsupported("Profile API not enabled: it profiles models that torch runs, and none is loaded")
    import torch
    from torch._C._profiler import _ExperimentalConfig
    from torch.autograd.profiler import profile  # torch.profiler's imports torch.distributed to start: seconds

    device = "cuda" if torch.cuda.is_available() else None
    profiler = profile(use_device=device, experimental_config=_ExperimentalConfig(profile_all_threads=True))
    profiler.__enter__()
    _running.append(profiler)
