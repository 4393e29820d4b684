"""`s3://bucket/path`: Amazon S3 and compatible stores (AWS_ENDPOINT_URL)."""

import os

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.storage.store_interface import FetchOptions
from pilotlight_predictor.storage.stores.object_store import ObjectStore, bucket_and_prefix, open_bucket
from pilotlight_predictor.storage.uri import Location, redact_text

HINT = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_SKIP_SIGNATURE=true for a public bucket)"


def open_store(location: Location, options: FetchOptions) -> ObjectStore:
    from obstore.store import S3Store

    name, prefix = bucket_and_prefix(location, HINT)
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint and not endpoint.startswith(("http://", "https://")):  # the library would panic
        wrong = f"AWS_ENDPOINT_URL = {redact_text(endpoint)}, must be a URL such as http://minio:9000"
        raise LoadFailed(f"{location.redacted}: {wrong}")
    config = {"endpoint": endpoint} if endpoint else {}
    return open_bucket(S3Store, name, prefix, location, options, config=config, endpoint=endpoint, hint=HINT)
