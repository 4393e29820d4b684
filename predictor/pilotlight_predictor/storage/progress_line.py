"""Progress of a download on stderr: for `fetch`, and for a server that a person starts on a terminal."""

import sys
from time import monotonic
from typing import Final

from pilotlight_predictor.storage.store_interface import MIB, Progress

TERMINAL_S, LOG_S = 0.2, 5.0  # between two lines
WIDTH: Final = 24


class ProgressLine:
    """Progress: one rewritten line with a bar on a terminal, a line every few seconds in a log."""

    def __init__(self, terminal: bool, started: float) -> None:
        self.latest = Progress(0, 0, 0, 0)
        self._terminal = terminal
        self._reported_at = -TERMINAL_S if terminal else started
        self._started = started
        self._shown = False

    def __call__(self, progress: Progress) -> None:
        self.latest = progress
        now = monotonic()
        if self._terminal and progress.done_bytes == progress.total_bytes:
            sys.stderr.write("\x1b[K" if self._shown else "")
            self._shown = False
        elif now - self._reported_at >= (TERMINAL_S if self._terminal else LOG_S):
            self._reported_at = now
            self._shown = self._terminal
            line = progress_text(progress, now - self._started)
            # The next line of a log begins where this one does.
            sys.stderr.write(f"\x1b[K{bar(progress)}{line}\r" if self._terminal else f"{line}\n")
        sys.stderr.flush()


def bar(progress: Progress) -> str:
    """`[######------] `; empty while the size is unknown."""
    if progress.total_bytes <= 0:
        return ""
    filled = min(WIDTH, WIDTH * progress.done_bytes // progress.total_bytes)
    return f"[{'#' * filled}{'-' * (WIDTH - filled)}] "


def progress_text(progress: Progress, seconds: float) -> str:
    done = f"{progress.done_bytes / MIB:.1f}"
    total = f" of {progress.total_bytes / MIB:.1f}" if progress.total_bytes >= 0 else ""
    speed = progress.done_bytes / MIB / seconds if seconds > 0 else 0.0
    return f"{done}{total} MiB, {progress.files_done} of {progress.files_total} files, {speed:.1f} MiB/s"
