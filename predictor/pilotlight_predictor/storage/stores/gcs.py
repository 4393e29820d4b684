"""`gs://bucket/path`: Google Cloud Storage, or an emulator of its XML API (STORAGE_EMULATOR_HOST)."""

import os
from typing import Any

from pilotlight_predictor.storage.store_interface import FetchOptions
from pilotlight_predictor.storage.stores.object_store import ObjectStore, bucket_and_prefix, open_bucket
from pilotlight_predictor.storage.uri import Location

HINT = "GOOGLE_APPLICATION_CREDENTIALS (or GOOGLE_SKIP_SIGNATURE=true for a public bucket)"


def open_store(location: Location, options: FetchOptions) -> ObjectStore:
    from obstore.store import GCSStore

    name, prefix = bucket_and_prefix(location, HINT)
    host = os.environ.get("STORAGE_EMULATOR_HOST", "")  # `host:port` or a URL, as in Google's clients
    endpoint = (host if "://" in host else f"http://{host}").rstrip("/") if host else None
    config: dict[str, Any] = {"base_url": endpoint, "skip_signature": True} if endpoint else {}
    return open_bucket(GCSStore, name, prefix, location, options, config=config, endpoint=endpoint, hint=HINT)
