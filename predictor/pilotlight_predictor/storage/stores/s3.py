"""`s3://bucket/path`: Amazon S3 and everything that speaks it (AWS_ENDPOINT_URL)."""

import os

from pilotlight_predictor.storage.interface import FetchOptions
from pilotlight_predictor.storage.stores.objects import (
    RETRY_ONCE,
    ObjectsStore,
    bucket_and_prefix,
    client_options,
    opened,
)
from pilotlight_predictor.storage.uri import Location

HINT = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_SKIP_SIGNATURE=true for a public bucket)"


def open_store(location: Location, options: FetchOptions) -> ObjectsStore:
    from obstore.store import S3Store

    name, prefix = bucket_and_prefix(location, HINT)
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    config = {"endpoint": endpoint} if endpoint else {}
    chosen = client_options(endpoint, options)

    def build() -> S3Store:
        return S3Store(name, config=config, client_options=chosen, retry_config=RETRY_ONCE)

    return ObjectsStore(location, opened(build, location, HINT), prefix, HINT)
