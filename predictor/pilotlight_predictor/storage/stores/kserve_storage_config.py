"""`storage-config://path`: bucket and credentials from an entry of KServe's storage-config Secret.

The entry is a JSON document in STORAGE_CONFIG; the InferenceService's own values in STORAGE_OVERRIDE_CONFIG win. The
store is opened as if its own variables were set: a container has one such entry, so process-wide variables suffice.
"""

import json
import os
from base64 import b64decode
from collections.abc import Mapping
from typing import Any

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.storage.store_interface import FetchOptions, Store
from pilotlight_predictor.storage.uri import ALIASES, Location

CONFIG = "STORAGE_CONFIG"
OVERRIDE = "STORAGE_OVERRIDE_CONFIG"

# Environment variables of each store by the keys of an entry.
VARIABLES: dict[str, dict[str, str]] = {
    "s3": {
        "access_key_id": "AWS_ACCESS_KEY_ID",
        "secret_access_key": "AWS_SECRET_ACCESS_KEY",
        "session_token": "AWS_SESSION_TOKEN",
        "endpoint_url": "AWS_ENDPOINT_URL",
        "region": "AWS_REGION",
    },
    "gs": {"base64_service_account": "GOOGLE_SERVICE_ACCOUNT_KEY"},
    "az": {
        "account_name": "AZURE_STORAGE_ACCOUNT_NAME",
        "account_key": "AZURE_STORAGE_ACCOUNT_KEY",
        "sas_token": "AZURE_STORAGE_SAS_TOKEN",
        "client_id": "AZURE_STORAGE_CLIENT_ID",
        "client_secret": "AZURE_STORAGE_CLIENT_SECRET",
        "tenant_id": "AZURE_STORAGE_TENANT_ID",
    },
}
ANONYMOUS = {"s3": "AWS_SKIP_SIGNATURE", "gs": "GOOGLE_SKIP_SIGNATURE"}
HINT = "the entry of storage-config needs type s3, gs or azure, and a bucket"


def open_store(location: Location, options: FetchOptions) -> Store:
    from pilotlight_predictor.storage.stores import open_store as open_named

    entry = read_entry(os.environ)
    real = resolve(location, entry)
    os.environ.update(variables(real.scheme, entry))
    return open_named(real, options)


def read_entry(environ: Mapping[str, str]) -> dict[str, str]:
    """Return both documents merged. Contents of a secret are never part of a message."""
    return {**_document(environ, CONFIG), **_document(environ, OVERRIDE)}


def resolve(location: Location, entry: Mapping[str, str]) -> Location:
    kind = entry.get("type", "")
    scheme = ALIASES.get(kind, kind)
    bucket = entry.get("bucket") or entry.get("container") or entry.get("container_name") or ""
    if scheme not in VARIABLES or not bucket:
        raise LoadFailed(f"{location.redacted}: type = {kind or 'nothing'}, bucket = {bucket or 'nothing'}; {HINT}")
    return Location(scheme, f"{bucket}/{location.rest.lstrip('/')}", location.sha256)


def variables(scheme: str, entry: Mapping[str, str]) -> dict[str, str]:
    result = {name: entry[key] for key, name in VARIABLES[scheme].items() if entry.get(key)}
    if scheme == "gs" and "GOOGLE_SERVICE_ACCOUNT_KEY" in result:
        try:
            key = b64decode(result["GOOGLE_SERVICE_ACCOUNT_KEY"], validate=True).decode()
        except ValueError:
            raise LoadFailed(f"{CONFIG}: base64_service_account is not base64 of a JSON key") from None
        result["GOOGLE_SERVICE_ACCOUNT_KEY"] = key
    if entry.get("anonymous", "").lower() == "true" and scheme in ANONYMOUS:
        result[ANONYMOUS[scheme]] = "true"
    return result


def _document(environ: Mapping[str, str], name: str) -> dict[str, str]:
    text = environ.get(name, "")
    if not text:
        return {}
    try:
        document: Any = json.loads(text)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise LoadFailed(f"{name} is not a JSON object; it is one entry of the Secret storage-config")
    return {str(key): str(value) for key, value in document.items()}
