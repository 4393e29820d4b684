"""Media in a workspace's object store: a URL is presigned with its credentials and fetched by web.py.

Signing makes no connection, so that web.py checks and pins all addresses. Without credentials in the workspace the
object must be public: none are taken from the environment or an instance's metadata service.
"""

import base64
import hashlib
import hmac
import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote, urlencode

from pilotlight.errors import PlatformError, UsageError
from pilotlight.microservices import credentials
from pilotlight.microservices.media.references import StoredObject, WebAddress, parse_web
from pilotlight.microservices.media.refusals import MediaError
from pilotlight.microservices.model import Workspace

URL_TTL: Final = timedelta(minutes=15)
TIMEOUTS: Final = {"connect_timeout": timedelta(seconds=10), "timeout": timedelta(minutes=10)}
RETRIES: Final = {"max_retries": 2, "retry_timeout": timedelta(seconds=30)}
AZURE_VERSION: Final = "2022-11-02"
INSTALL: Final = "object stores need the package obstore: pip install 'pilotlight[cloud]'"


def sign_url(stored: StoredObject, workspace: Workspace, environ: Mapping[str, str] = os.environ) -> WebAddress:
    """Return a presigned address of the object, valid for 15 minutes."""
    try:
        secrets = credentials.values(workspace, environ)
    except UsageError as error:
        raise MediaError("cannot be fetched: the workspace's credentials are not set", str(error)) from error
    address = _s3_address if stored.scheme == "s3" else _azure_address
    return parse_web(address(stored, workspace, secrets))


def _s3_address(stored: StoredObject, workspace: Workspace, secrets: Mapping[str, str]) -> str:
    if secrets:
        return _sign(_s3(stored.bucket, workspace, secrets), stored.key)
    return f"{_s3_endpoint(workspace)}/{stored.bucket}/{quote(stored.key)}"


def _azure_address(stored: StoredObject, workspace: Workspace, secrets: Mapping[str, str]) -> str:
    account = _account(stored, workspace)
    front = workspace.endpoint.rstrip("/") or f"https://{account}.blob.core.windows.net"
    token = secrets.get("sas_token", "").lstrip("?")
    if "account_key" in secrets:
        resource = f"/blob/{account}/{stored.bucket}/{stored.key}"
        token = azure_signature(resource, secrets["account_key"], datetime.now(UTC) + URL_TTL)
    return f"{front}/{stored.bucket}/{quote(stored.key)}" + (f"?{token}" if token else "")


def azure_signature(resource: str, key: str, ends: datetime) -> str:
    """Return a service SAS to read one blob. obstore signs the encoded name, which Azure does not accept."""
    expiry = ends.strftime("%Y-%m-%dT%H:%M:%SZ")
    fields = ["r", "", expiry, resource, "", "", "", AZURE_VERSION, "b", *[""] * 7]
    try:
        secret = base64.b64decode(key, validate=True)
    except ValueError as error:
        raise MediaError("cannot be fetched: the workspace's account_key is no key", "it is not base64") from error
    mac = hmac.digest(secret, "\n".join(fields).encode(), hashlib.sha256)
    return urlencode({"sv": AZURE_VERSION, "sr": "b", "sp": "r", "se": expiry, "sig": base64.b64encode(mac).decode()})


def open_bucket(stored_in: str, scheme: str, workspace: Workspace, environ: Mapping[str, str] = os.environ) -> Any:
    """Return obstore's store of a bucket, for listing and writing (batch/)."""
    secrets = credentials.values(workspace, environ)
    if scheme == "s3":
        return _s3(stored_in, workspace, secrets)
    return _azure(stored_in, workspace.account, workspace, secrets)


def _account(stored: StoredObject, workspace: Workspace) -> str:
    """Return the account. Raise for another one than the workspace's: its credentials must not be sent there."""
    if stored.account and workspace.account and stored.account != workspace.account:
        raise MediaError(f"is in the account {stored.account}, and the workspace's is {workspace.account}")
    account = stored.account or workspace.account
    if not account:
        raise MediaError("cannot be fetched: the workspace names no Azure account")
    return account


def _s3_endpoint(workspace: Workspace) -> str:
    return workspace.endpoint.rstrip("/") or f"https://s3.{workspace.region}.amazonaws.com"


def _s3(name: str, workspace: Workspace, secrets: Mapping[str, str]) -> Any:
    """Return the store. All settings are explicit: obstore would take missing ones from the environment."""
    config = {
        "region": workspace.region,
        "endpoint": _s3_endpoint(workspace),
        "skip_signature": str(not secrets).lower(),
    }
    values = {
        "access_key_id": secrets.get("access_key", ""),
        "secret_access_key": secrets.get("secret_key", ""),
        "token": secrets.get("session_token"),
        "expires_at": None,
    }
    return _open_store("S3Store", name, config, workspace, {"credential_provider": lambda: values} if secrets else {})


def _azure(name: str, account: str, workspace: Workspace, secrets: Mapping[str, str]) -> Any:
    config = {"account_name": account, "skip_signature": str(not secrets).lower()}
    if workspace.endpoint:
        config["endpoint"] = workspace.endpoint
    values: dict[str, Any] = {"expires_at": None}
    if "account_key" in secrets:
        values["access_key"] = secrets["account_key"]
    else:
        values["sas_token"] = secrets.get("sas_token", "").lstrip("?")
    return _open_store(
        "AzureStore", name, config, workspace, {"credential_provider": lambda: values} if secrets else {}
    )


def _open_store(
    kind: str, name: str, config: Mapping[str, str], workspace: Workspace, further: Mapping[str, Any]
) -> Any:
    try:
        from obstore import store
        from obstore.exceptions import BaseError
    except ImportError:
        raise PlatformError(INSTALL) from None
    options = {**TIMEOUTS, **({"allow_http": True} if workspace.endpoint.startswith("http://") else {})}
    try:
        return getattr(store, kind)(name, config=config, client_options=options, retry_config=RETRIES, **further)
    except (BaseError, ValueError) as error:
        raise MediaError(
            "cannot be fetched: the workspace's storage is not set up as it should be", str(error)
        ) from error


def _sign(store: Any, key: str) -> str:
    import obstore
    from obstore.exceptions import BaseError

    try:
        return str(obstore.sign(store, "GET", key, expires_in=URL_TTL))
    except (BaseError, ValueError) as error:
        raise MediaError("cannot be fetched: the workspace's credentials cannot sign for it", str(error)) from error
