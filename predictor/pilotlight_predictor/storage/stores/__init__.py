"""Table of stores. A new store is a module in this folder with `open_store(location, options)`, and a line here."""

from importlib import import_module

from pilotlight.wire.environments.install_command import install_command
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.storage.store_interface import FetchOptions, Store
from pilotlight_predictor.storage.uri import ALIASES, Location

TABLE = {
    "as": "azure",  # Triton's as://account/container/path
    "az": "azure",
    "file": "local",
    "gs": "gcs",
    "hf": "huggingface",
    "http": "web",
    "https": "web",
    "oci+fetch": "oci_registry",
    "s3": "s3",
    "storage-config": "kserve_storage_config",
}
NEEDS_CLOUD = {"as", "az", "gs", "hf", "s3"}


def open_store(location: Location, options: FetchOptions) -> Store:
    module = TABLE.get(location.scheme)
    if module is None:
        known = ", ".join(f"{scheme}://" for scheme in sorted({*TABLE, *ALIASES}))
        raise LoadFailed(f"{location.redacted}: {location.scheme}:// is not supported; use a path or one of {known}")
    try:
        opened: Store = import_module(f"{__name__}.{module}").open_store(location, options)
    except ModuleNotFoundError as error:
        if location.scheme not in NEEDS_CLOUD:
            raise
        raise LoadFailed(f"{location.scheme}:// needs the cloud extra: {install_command('cloud')}") from error
    return opened
