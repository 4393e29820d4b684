"""`python -m pilotlight_predictor [FLAGS]` serves models; `fetch URI DIR` brings one, `compile PATH` readies one."""

import gc
import os
import sys
from contextlib import suppress
from time import CLOCK_BOOTTIME, clock_gettime, perf_counter


def main(argv: list[str]) -> int:
    if argv[:1] == ["fetch"]:
        from pilotlight_predictor.storage.command import main as fetch

        return fetch(argv[1:])
    if argv[:1] == ["compile"]:
        from pilotlight_predictor.aot.command import main as compile_model

        return compile_model(argv[1:])
    gc.disable()  # until models are loaded: what a start makes stays, and walking it takes a tenth of the imports
    from pilotlight_predictor.lifecycle import Lifecycle

    now = perf_counter()
    lifecycle = Lifecycle(now - seconds_since_exec(), now)
    from pilotlight_predictor.settings import command_line

    settings = command_line(argv, os.environ)
    if settings.server.workers > 1:
        from pilotlight_predictor.workers import run as run_several

        gc.enable()
        return run_several(settings, lifecycle, argv)
    from pilotlight_predictor.app import run

    return run(settings, lifecycle)


def seconds_since_exec() -> float:
    """How long this process has existed, by the kernel's clock: what the interpreter itself took to start."""
    try:
        with open("/proc/self/stat", "rb") as stat:
            start_ticks = int(stat.read().rpartition(b") ")[2].split()[19])
        return max(0.0, clock_gettime(CLOCK_BOOTTIME) - start_ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return 0.0


if __name__ == "__main__":
    from pilotlight.early_end import heed_sigterm

    heed_sigterm()
    code = main(sys.argv[1:])
    with suppress(OSError):  # a full disk for logs is no reason to end differently
        sys.stdout.flush()
        sys.stderr.flush()
    # Threads of a load that hangs, or of a runtime's pool, must not hold the exit up.
    os._exit(code)
