"""Download of models: from URIs to local files. The public names of the package.

    uri ─> stores (one module per kind, one table) ─> transfer (parallel parts, resume) ─> cache | into | sync

A server with local models calls only `is_remote`: downloading modules are imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pilotlight_predictor.storage.store_interface import (
    Entry,
    FetchOptions,
    Pin,
    Progress,
    ProgressCallback,
    UriNotFound,
)
from pilotlight_predictor.storage.uri import is_remote, redact

if TYPE_CHECKING:
    from pilotlight_predictor.storage.fetcher import fetch, fetch_into, listing
    from pilotlight_predictor.storage.pins import cached_pin, parse_pin
    from pilotlight_predictor.storage.sync import sync_repository

_ON_FIRST_USE = {
    "cached_pin": "pins",
    "fetch": "fetcher",
    "listing": "fetcher",
    "fetch_into": "fetcher",
    "parse_pin": "pins",
    "sync_repository": "sync",
}

__all__ = [
    "Entry",
    "FetchOptions",
    "Pin",
    "Progress",
    "ProgressCallback",
    "UriNotFound",
    "cached_pin",
    "fetch",
    "fetch_into",
    "is_remote",
    "listing",
    "parse_pin",
    "redact",
    "sync_repository",
]


def __getattr__(name: str) -> Any:
    if name not in _ON_FIRST_USE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ON_FIRST_USE[name]}"), name)
