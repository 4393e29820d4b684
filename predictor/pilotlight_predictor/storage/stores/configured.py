"""`storage-config://path`: a bucket and its credentials from one of KServe's storage-config entries.

The entry is a JSON document in STORAGE_CONFIG, which a pod gets out of a Secret; what the service itself says about
the place, in STORAGE_OVERRIDE_CONFIG, wins over it. The store that it names is opened as if its own variables had
been set: a container has one such entry, so they can stand for the whole process.
"""

import json
import os
from collections.abc import Mapping
from typing import Any

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.storage.interface import FetchOptions, Store
from pilotlight_predictor.storage.uri import ALIASES, Location

CONFIG = "STORAGE_CONFIG"
OVERRIDE = "STORAGE_OVERRIDE_CONFIG"

# What the keys of an entry are called in the environment of each store.
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

    entry = read(os.environ)
    real = place(location, entry)
    os.environ.update(variables(real.scheme, entry))
    return open_named(real, options)


def read(environ: Mapping[str, str]) -> dict[str, str]:
    """Both documents as one. A secret's content is never part of a message."""
    return {**_document(environ, CONFIG), **_document(environ, OVERRIDE)}


def place(location: Location, entry: Mapping[str, str]) -> Location:
    kind = entry.get("type", "")
    scheme = ALIASES.get(kind, kind)
    bucket = entry.get("bucket") or entry.get("container") or entry.get("container_name") or ""
    if scheme not in VARIABLES or not bucket:
        raise LoadFailed(f"{location.shown}: type = {kind or 'nothing'}, bucket = {bucket or 'nothing'}; {HINT}")
    return Location(scheme, f"{bucket}/{location.rest.lstrip('/')}", location.sha256)


def variables(scheme: str, entry: Mapping[str, str]) -> dict[str, str]:
    found = {name: entry[key] for key, name in VARIABLES[scheme].items() if entry.get(key)}
    if scheme == "gs" and "GOOGLE_SERVICE_ACCOUNT_KEY" in found:
        found["GOOGLE_SERVICE_ACCOUNT_KEY"] = _decoded(found["GOOGLE_SERVICE_ACCOUNT_KEY"])
    if entry.get("anonymous", "").lower() == "true" and scheme in ANONYMOUS:
        found[ANONYMOUS[scheme]] = "true"
    return found


def _decoded(text: str) -> str:
    from base64 import b64decode

    try:
        return b64decode(text, validate=True).decode()
    except ValueError:
        raise LoadFailed(f"{CONFIG}: base64_service_account is not base64 of a JSON key") from None


def _document(environ: Mapping[str, str], name: str) -> dict[str, str]:
    written = environ.get(name, "")
    if not written:
        return {}
    try:
        document: Any = json.loads(written)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise LoadFailed(f"{name} is not a JSON object; it is one entry of the Secret storage-config")
    return {str(key): str(value) for key, value in document.items()}
