"""`python -m pilotlight_predictor fetch URI DIR`: what an init container runs before a server that cannot fetch.

Exit codes: 0 the model is there, 1 it failed, 2 wrong usage, 3 nothing is stored under the URI, 130 interrupted.
"""

import argparse
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import NoReturn

from pilotlight import contract
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.storage.interface import FetchOptions, Progress, UriNotFound
from pilotlight_predictor.storage.into import fetch_into, held
from pilotlight_predictor.storage.uri import redact

MIB = 1024 * 1024
TERMINAL_SECONDS, LOG_SECONDS = 0.2, 5.0
EXIT_INTERRUPTED = 130
PROGRAM = "python -m pilotlight_predictor fetch"


def main(argv: list[str]) -> int:
    try:
        arguments = _parser(os.environ.get(contract.ENV_PROGRAM, PROGRAM)).parse_args(argv)
    except SystemExit as leaving:
        return int(leaving.code or 0)
    show = ProgressLine(sys.stderr.isatty(), monotonic())
    try:
        with _interruptible():
            path = fetch_into(arguments.uri, Path(arguments.directory), show, options=_options(arguments))
    except LoadFailed as error:
        sys.stderr.write(f"{error}\n")
        return 3 if isinstance(error, UriNotFound) else 1
    _print_result(arguments, path, show.latest)
    return 0


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C ends the process at once: threads that wait for a stalled server would hold an exception up for long.

    Nothing is lost by that, since the next run takes up what a killed one left. An ignored signal stays ignored.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _interrupted(number: int, frame: FrameType | None) -> NoReturn:
    """Writes past `sys.stderr`, which the signal may have found in the middle of a write."""
    start = "\r\x1b[K" if sys.stderr.isatty() else ""
    os.write(2, f"{start}interrupted; the same command goes on where it stopped\n".encode())
    os._exit(EXIT_INTERRUPTED)


class ProgressLine:
    """Rewrites one line on a terminal; writes a line every few seconds into a log."""

    def __init__(self, terminal: bool, started: float) -> None:
        self.latest = Progress(0, 0, 0, 0)
        self._terminal = terminal
        self._told = started
        self._started = started

    def __call__(self, progress: Progress) -> None:
        self.latest = progress
        now = monotonic()
        if now - self._told < (TERMINAL_SECONDS if self._terminal else LOG_SECONDS):
            return
        self._told = now
        line = progress_text(progress, now - self._started)
        sys.stderr.write(f"\r\x1b[K{line}" if self._terminal else f"{line}\n")
        sys.stderr.flush()


def progress_text(progress: Progress, seconds: float) -> str:
    done = f"{progress.done_bytes / MIB:.1f}"
    total = f" of {progress.total_bytes / MIB:.1f}" if progress.total_bytes >= 0 else ""
    speed = progress.done_bytes / MIB / seconds if seconds > 0 else 0.0
    return f"{done}{total} MiB, {progress.files_done} of {progress.files_total} files, {speed:.1f} MiB/s"


def _print_result(arguments: argparse.Namespace, path: Path, progress: Progress) -> None:
    if arguments.output == "json":
        there = held(Path(arguments.directory))
        facts = {"uri": redact(arguments.uri), "path": str(path), "bytes": there.bytes, "files": there.files}
        sys.stdout.write(json.dumps({**facts, "copied_bytes": progress.done_bytes}) + "\n")
    else:
        sys.stdout.write(f"{path}\n")


def _options(arguments: argparse.Namespace) -> FetchOptions:
    return FetchOptions(
        sha256=arguments.sha256,
        size=arguments.size,
        concurrency=arguments.concurrency,
        allow_http=arguments.allow_http,
        unpack=not arguments.no_unpack,
    )


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=program, description="Fetch a model into a directory.")
    parser.add_argument("uri", metavar="URI", help="path, file://, https://, s3://, gs://, az:// or hf://")
    parser.add_argument("directory", metavar="DIR", help="where the model goes; created when missing")
    parser.add_argument("--sha256", default="", help="hash that the one file (or archive) must have")
    parser.add_argument("--size", type=int, help="total bytes that the URI must name")
    parser.add_argument("--concurrency", type=_positive, default=8, help="parts read at once (8)")
    parser.add_argument("--allow-http", action="store_true", help="plain http:// beyond this machine")
    parser.add_argument("--no-unpack", action="store_true", help="leave .tar, .tar.gz, .tgz and .zip as they are")
    parser.add_argument("-o", "--output", choices=("text", "table", "json"), default="text", help="table is text")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value}, must be at least 1")
    return value
