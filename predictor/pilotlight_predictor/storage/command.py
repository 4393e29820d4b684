"""`python -m pilotlight_predictor fetch URI DIR`: the init container of servers that cannot download.

Exit codes: 0 success, 1 failure, 2 wrong usage, 3 nothing is stored under the URI, 4 the pinned content is not there
any more, 130 interrupted.
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
from pilotlight.wire.messages import redact_uri
from pilotlight_predictor.config.command_parser import CommandParser
from pilotlight_predictor.errors import LoadFailed, ModelChanged
from pilotlight_predictor.storage.fetcher import fetch, fetch_into, fetched_sizes, link_into
from pilotlight_predictor.storage.pins import parse_pins, read_pin
from pilotlight_predictor.storage.progress_line import ProgressLine
from pilotlight_predictor.storage.store_interface import FetchOptions, UriNotFound

EXIT_INTERRUPTED = 130
PROGRAM = "python -m pilotlight_predictor fetch"


def main(argv: list[str]) -> int:
    try:
        arguments = _parser(os.environ.get(contract.ENV_PROGRAM, PROGRAM)).parse_args(argv)
    except SystemExit as leaving:
        return int(leaving.code or 0)
    directory, show = Path(arguments.directory), ProgressLine(sys.stderr.isatty(), monotonic())
    try:
        options = _options(arguments)
        with _interruptible():
            if arguments.cache is not None:
                content = fetch(arguments.uri, arguments.cache, show, options=options)
                path = link_into(content, arguments.cache, directory)
            else:
                path = fetch_into(arguments.uri, directory, show, options=options)
    except LoadFailed as error:
        sys.stderr.write(f"{error}\n")
        return 3 if isinstance(error, UriNotFound) else 4 if isinstance(error, ModelChanged) else 1
    if arguments.output == "json":
        sizes = fetched_sizes(directory)
        if arguments.cache is not None:
            sizes = [file.stat().st_size for file in (content, *content.rglob("*")) if file.is_file()]
        result = {"uri": redact_uri(arguments.uri), "path": str(path), "bytes": sum(sizes), "files": len(sizes)}
        sys.stdout.write(json.dumps({**result, "copied_bytes": show.latest.done_bytes}) + "\n")
    else:
        sys.stdout.write(f"{path}\n")
    return 0


def _options(arguments: argparse.Namespace) -> FetchOptions:
    """Return the options; the pin of the flag, else that of the variable that the platform sets."""
    pins, uri = os.environ.get(contract.ENV_MODEL_PINS, ""), arguments.uri
    return FetchOptions(
        sha256=arguments.sha256,
        size=arguments.size,
        pin=read_pin(arguments.pin, uri) if arguments.pin else parse_pins(pins, uri),
        concurrency=arguments.concurrency,
        allow_http=arguments.allow_http,
        unpack=not arguments.no_unpack,
    )


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C end the process at once: threads waiting for a stalled server would delay an exception. The next run
    resumes the download. An ignored signal stays ignored."""
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
    """Exit with a message on fd 2; the signal may have interrupted a write to `sys.stderr`."""
    start = "\r\x1b[K" if sys.stderr.isatty() else ""
    os.write(2, f"{start}interrupted; run the same command to resume\n".encode())
    os._exit(EXIT_INTERRUPTED)


def _parser(program: str) -> argparse.ArgumentParser:
    parser = CommandParser(prog=program, description="Fetch a model into a directory.")
    parser.add_argument(
        "uri", metavar="URI", help="path, file://, https://, s3://, gs://, az://, hf:// or oci+fetch://"
    )
    parser.add_argument("directory", metavar="DIR", help="target directory; created if missing")
    parser.add_argument("--sha256", default="", help="expected SHA-256 of the file or archive")
    parser.add_argument("--size", type=int, help="expected total size in bytes")
    parser.add_argument(
        "--pin", default="", metavar="JSON", help=f"pinned content to fetch; also {contract.ENV_MODEL_PINS}"
    )
    parser.add_argument("--cache", type=Path, metavar="DIR", help="download into a shared cache and link to it")
    parser.add_argument("--concurrency", type=_positive, default=8, help="parallel downloads (8)")
    parser.add_argument("--allow-http", action="store_true", help="allow plain http:// to other machines")
    parser.add_argument("--no-unpack", action="store_true", help="do not unpack .tar, .tar.gz, .tgz and .zip")
    parser.add_argument("-o", "--output", choices=("text", "table", "json"), default="text", help="table is text")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value}, must be at least 1")
    return value
