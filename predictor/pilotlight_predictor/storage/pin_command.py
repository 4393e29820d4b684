"""`python -m pilotlight_predictor pin URI…`: the content of model URIs at this moment, as pins. Downloads nothing.

Prints a JSON object with a pin, or an error, for each URI. Exit codes: 0 all are pinned, 1 some are not, 2 wrong usage.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from threading import Thread
from time import monotonic
from typing import Any

from pilotlight.wire.messages import redact_uri
from pilotlight_predictor.config.command_parser import CommandParser
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.storage.fetcher import open_and_list
from pilotlight_predictor.storage.pins import can_have_versions, pin_location, pin_of
from pilotlight_predictor.storage.store_interface import FetchOptions, Pin, VersionedStore
from pilotlight_predictor.storage.transfer import with_retries
from pilotlight_predictor.storage.uri import Location

TIMEOUT_S = 20.0
RETRIES = 1


def main(argv: list[str]) -> int:
    try:
        arguments = _parser().parse_args(argv)
    except SystemExit as leaving:
        return int(leaving.code or 0)
    uris = [line for uri in arguments.uris for line in (sys.stdin.read().split() if uri == "-" else [uri])]
    options = FetchOptions(timeout=arguments.timeout, retries=RETRIES, allow_http=arguments.allow_http)
    read = list_names if arguments.names else lambda uri, options: asdict(resolve(uri, options))
    results = resolve_all(uris, options, arguments.timeout, read)
    silent = {"error": f"the store did not respond within {arguments.timeout:g} s"}
    sys.stdout.write(json.dumps({uri: results.get(uri, silent) for uri in uris}) + "\n")
    sys.stdout.flush()
    if len(results) < len(set(uris)):
        os._exit(1)  # a thread still waits for a silent store, in a call that cannot be interrupted
    return 1 if any("error" in result for result in results.values()) else 0


def resolve_all(
    uris: Sequence[str], options: FetchOptions, timeout: float, read: Callable[[str, FetchOptions], dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return what `read` does, or an error, for each URI whose store answers within `timeout` seconds, in parallel."""
    results: dict[str, dict[str, Any]] = {}

    def run(uri: str) -> None:
        try:
            results[uri] = read(uri, options)
        except Exception as error:  # one URI must not hide the pins of the others
            sentence = str(error) if isinstance(error, LoadFailed) else f"{redact_uri(uri)}: {type(error).__name__}"
            results[uri] = {"error": sentence}

    threads = [Thread(target=run, args=(uri,), daemon=True) for uri in dict.fromkeys(uris)]
    deadline = monotonic() + timeout
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - monotonic()))
    return dict(results)


def resolve(uri: str, options: FetchOptions) -> Pin:
    """Return the pin of a URI. Raise LoadFailed if its store cannot be read or shows no change of the content."""
    location = pin_location(uri)
    if location.sha256:
        return Pin(f"sha256:{location.sha256}", _size_of(location, options))
    store, contents = open_and_list(location, options)
    if isinstance(store, VersionedStore) and can_have_versions(contents):
        contents = with_retries(lambda: store.with_versions(contents), location.redacted, options) or contents
    return pin_of(location, contents)


def list_names(uri: str, options: FetchOptions) -> dict[str, Any]:
    _, contents = open_and_list(pin_location(uri), options)
    return {"names": [entry.path for entry in contents.entries]}


def _size_of(location: Location, options: FetchOptions) -> int:
    """Return the size of a file with a known hash; 0 if its server does not say, which changes nothing."""
    try:
        _, contents = open_and_list(location, replace(options, retries=0))
    except LoadFailed:
        return 0
    return max(contents.entries[0].size, 0)


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="python -m pilotlight_predictor pin",
        description="Print the current content of model URIs as JSON: a pin or an error for each URI.",
    )
    parser.add_argument(
        "uris", metavar="URI", nargs="+", help="s3://, gs://, az://, hf://, oci+fetch:// or https://; - reads stdin"
    )
    parser.add_argument("--timeout", type=float, default=TIMEOUT_S, help="seconds for all of them (20)")
    parser.add_argument("--names", action="store_true", help="print file paths instead of pins")
    parser.add_argument("--allow-http", action="store_true", help="allow plain http:// to other machines")
    return parser
