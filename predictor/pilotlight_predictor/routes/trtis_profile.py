"""Torch profiler of the TRTIS protocol: `/api/profile?cmd=start|stop`.

One profiler per server, as in TRTIS, for all threads; only if torch is imported. Called in a thread, since summarizing
a long profile takes time.
"""

import sys
from threading import Lock
from typing import Any, Final

from pilotlight_predictor.errors import BadRequest, Unsupported

ROWS: Final = 40
_lock = Lock()
_running: list[Any] = []  # the profiler between start and stop


def run_command(command: str) -> str:
    """Start or stop the profiler; return the table of times for stop, else an empty string."""
    with _lock:
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
    from torch.autograd.profiler import profile  # torch.profiler imports torch.distributed: seconds

    device = "cuda" if torch.cuda.is_available() else None
    profiler = profile(use_device=device, experimental_config=_ExperimentalConfig(profile_all_threads=True))
    profiler.__enter__()
    _running.append(profiler)
