"""Azure Blob Storage: `az://container/path` with the account from the environment, or the account in the URI.

The account may be in the URI as `https://<account>.blob.core.windows.net/container/path` or, as in Triton,
`as://<account>/container/path`.
"""

import os
from typing import Any, NamedTuple

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.storage.store_interface import FetchOptions
from pilotlight_predictor.storage.stores.object_store import ObjectStore, bucket_and_prefix, open_bucket
from pilotlight_predictor.storage.uri import Location

HINT = (
    "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY (or AZURE_STORAGE_SAS_TOKEN, or"
    " AZURE_SKIP_SIGNATURE=true for a public container)"
)
_FROM_CONNECTION_STRING = {
    "AccountName": "account_name",
    "AccountKey": "account_key",
    "SharedAccessSignature": "sas_key",
    "BlobEndpoint": "endpoint",
}


class BlobContainer(NamedTuple):
    account: str  # empty: from the environment
    name: str
    prefix: str


def container(location: Location) -> BlobContainer:
    first, rest = bucket_and_prefix(location, HINT)
    in_host = ".blob." in first
    if not in_host and location.scheme != "as":
        return BlobContainer("", first, rest)
    name, _, prefix = rest.partition("/")
    if not name:
        raise LoadFailed(f"{location.redacted}: the container is missing; write the URI as …/container/path")
    return BlobContainer(first.partition(".")[0] if in_host else first, name, prefix)


def config_from(environment: dict[str, str], account: str) -> dict[str, Any]:
    """Return settings that obstore does not read from the environment itself; the account of the URI wins."""
    config: dict[str, Any] = {}
    for pair in environment.get("AZURE_STORAGE_CONNECTION_STRING", "").split(";"):
        name, _, value = pair.partition("=")
        if name in _FROM_CONNECTION_STRING:
            config[_FROM_CONNECTION_STRING[name]] = value
    for variable, key in (("AZURE_STORAGE_ACCOUNT", "account_name"), ("AZURE_STORAGE_KEY", "account_key")):
        if environment.get(variable):
            config[key] = environment[variable]
    endpoint = environment.get("AZURE_STORAGE_ENDPOINT") or environment.get("AZURE_ENDPOINT")
    if endpoint:
        config["endpoint"] = endpoint
    if account:
        config["account_name"] = account
    return config


def open_store(location: Location, options: FetchOptions) -> ObjectStore:
    from obstore.store import AzureStore

    parts = container(location)
    config = config_from(dict(os.environ), parts.account)
    if "account_name" not in config and not os.environ.get("AZURE_STORAGE_ACCOUNT_NAME"):
        raise LoadFailed(f"{location.redacted}: the storage account is unknown; set AZURE_STORAGE_ACCOUNT_NAME")
    endpoint = config.get("endpoint")
    return open_bucket(
        AzureStore, parts.name, parts.prefix, location, options, config=config, endpoint=endpoint, hint=HINT
    )
