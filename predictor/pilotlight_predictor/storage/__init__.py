"""Model URIs to local files. Everything that others may use is named here.

uri ─> stores (one module per kind, one table) ─> transfer (parallel parts, resume) ─> cache | into | sync
"""

from pilotlight_predictor.storage.fetching import fetch, listing
from pilotlight_predictor.storage.interface import Entry, FetchOptions, Progress, ProgressCallback, UriNotFound
from pilotlight_predictor.storage.into import fetch_into
from pilotlight_predictor.storage.sync import sync_repository
from pilotlight_predictor.storage.uri import is_remote, redact

__all__ = [
    "Entry",
    "FetchOptions",
    "Progress",
    "ProgressCallback",
    "UriNotFound",
    "fetch",
    "fetch_into",
    "is_remote",
    "listing",
    "redact",
    "sync_repository",
]
