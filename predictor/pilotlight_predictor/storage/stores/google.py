"""`gs://bucket/path`: Google Cloud Storage, or an emulator of its XML API (STORAGE_EMULATOR_HOST)."""

import os
from typing import Any

from pilotlight_predictor.storage.interface import FetchOptions
from pilotlight_predictor.storage.stores.objects import (
    RETRY_ONCE,
    ObjectsStore,
    bucket_and_prefix,
    client_options,
    opened,
)
from pilotlight_predictor.storage.uri import Location

HINT = "GOOGLE_APPLICATION_CREDENTIALS (or GOOGLE_SKIP_SIGNATURE=true for a public bucket)"


def open_store(location: Location, options: FetchOptions) -> ObjectsStore:
    from obstore.store import GCSStore

    name, prefix = bucket_and_prefix(location, HINT)
    endpoint = _emulator(os.environ.get("STORAGE_EMULATOR_HOST", ""))
    config: dict[str, Any] = {"base_url": endpoint, "skip_signature": True} if endpoint else {}
    chosen = client_options(endpoint, options)

    def build() -> GCSStore:
        return GCSStore(name, config=config, client_options=chosen, retry_config=RETRY_ONCE)

    return ObjectsStore(location, opened(build, location, HINT), prefix, HINT)


def _emulator(host: str) -> str | None:
    """The variable holds `host:port` or a URL, as Google's own clients read it."""
    return (host if "://" in host else f"http://{host}").rstrip("/") if host else None
