"""Media in a workspace's object store: an address is signed with its credentials and then asked for like any other.

Signing speaks to nobody, so the one client that connects (web.py) is the one that checks and pins
addresses. Where a workspace has no credentials, the object must be public: no others are looked for, least of all at an
instance's metadata service.
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
from pilotlight.microservices.media.references import StoredObject, WebAddress, web
from pilotlight.microservices.media.refusals import Refusal
from pilotlight.microservices.model import Workspace

VALID: Final = timedelta(minutes=15)
PATIENCE: Final = {"connect_timeout": timedelta(seconds=10), "timeout": timedelta(minutes=10)}
RETRIES: Final = {"max_retries": 2, "retry_timeout": timedelta(seconds=30)}
AZURE_VERSION: Final = "2022-11-02"
INSTALL: Final = "object stores need the package obstore: pip install 'pilotlight[cloud]'"


def signed(stored: StoredObject, workspace: Workspace, environ: Mapping[str, str] = os.environ) -> WebAddress:
    """The web address under which the object can be read for a while."""
    try:
        secrets = credentials.values(workspace, environ)
    except UsageError as error:
        raise Refusal("cannot be fetched: the workspace's credentials are not set", str(error)) from error
    of = _s3_address if stored.scheme == "s3" else _azure_address
    return web(of(stored, workspace, secrets))


def _s3_address(stored: StoredObject, workspace: Workspace, secrets: Mapping[str, str]) -> str:
    if secrets:
        return _sign(_s3(stored.bucket, workspace, secrets), stored.key)
    return f"{_s3_front(workspace)}/{stored.bucket}/{quote(stored.key)}"


def _azure_address(stored: StoredObject, workspace: Workspace, secrets: Mapping[str, str]) -> str:
    account = _account(stored, workspace)
    front = workspace.endpoint.rstrip("/") or f"https://{account}.blob.core.windows.net"
    token = secrets.get("sas_token", "").lstrip("?")
    if "account_key" in secrets:
        resource = f"/blob/{account}/{stored.bucket}/{stored.key}"
        token = azure_signature(resource, secrets["account_key"], datetime.now(UTC) + VALID)
    return f"{front}/{stored.bucket}/{quote(stored.key)}" + (f"?{token}" if token else "")


def azure_signature(resource: str, key: str, ends: datetime) -> str:
    """A service signature to read one blob. obstore signs names as they are encoded, which Azure does not accept."""
    expiry = ends.strftime("%Y-%m-%dT%H:%M:%SZ")
    fields = ["r", "", expiry, resource, "", "", "", AZURE_VERSION, "b", *[""] * 7]
    try:
        secret = base64.b64decode(key, validate=True)
    except ValueError as error:
        raise Refusal("cannot be fetched: the workspace's account_key is no key", "it is not base64") from error
    mac = hmac.digest(secret, "\n".join(fields).encode(), hashlib.sha256)
    return urlencode({"sv": AZURE_VERSION, "sr": "b", "sp": "r", "se": expiry, "sig": base64.b64encode(mac).decode()})


def bucket(stored_in: str, scheme: str, workspace: Workspace, environ: Mapping[str, str] = os.environ) -> Any:
    """The bucket itself as obstore's object, for who lists and writes (batch/)."""
    secrets = credentials.values(workspace, environ)
    if scheme == "s3":
        return _s3(stored_in, workspace, secrets)
    return _azure(stored_in, workspace.account, workspace, secrets)


def _account(stored: StoredObject, workspace: Workspace) -> str:
    """Credentials of one account are not shown to another."""
    if stored.account and workspace.account and stored.account != workspace.account:
        raise Refusal(f"is in the account {stored.account}, and the workspace's is {workspace.account}")
    account = stored.account or workspace.account
    if not account:
        raise Refusal("cannot be fetched: the workspace names no Azure account")
    return account


def _s3_front(workspace: Workspace) -> str:
    return workspace.endpoint.rstrip("/") or f"https://s3.{workspace.region}.amazonaws.com"


def _s3(name: str, workspace: Workspace, secrets: Mapping[str, str]) -> Any:
    """obstore would take what is missing from the environment of this process, so nothing is left out."""
    config = {"region": workspace.region, "endpoint": _s3_front(workspace), "skip_signature": str(not secrets).lower()}
    given = {
        "access_key_id": secrets.get("access_key", ""),
        "secret_access_key": secrets.get("secret_key", ""),
        "token": secrets.get("session_token"),
        "expires_at": None,
    }
    return _made("S3Store", name, config, workspace, {"credential_provider": lambda: given} if secrets else {})


def _azure(name: str, account: str, workspace: Workspace, secrets: Mapping[str, str]) -> Any:
    config = {"account_name": account, "skip_signature": str(not secrets).lower()}
    if workspace.endpoint:
        config["endpoint"] = workspace.endpoint
    given: dict[str, Any] = {"expires_at": None}
    if "account_key" in secrets:
        given["access_key"] = secrets["account_key"]
    else:
        given["sas_token"] = secrets.get("sas_token", "").lstrip("?")
    return _made("AzureStore", name, config, workspace, {"credential_provider": lambda: given} if secrets else {})


def _made(kind: str, name: str, config: Mapping[str, str], workspace: Workspace, further: Mapping[str, Any]) -> Any:
    try:
        from obstore import store
        from obstore.exceptions import BaseError
    except ImportError:
        raise PlatformError(INSTALL) from None
    options = {**PATIENCE, **({"allow_http": True} if workspace.endpoint.startswith("http://") else {})}
    try:
        return getattr(store, kind)(name, config=config, client_options=options, retry_config=RETRIES, **further)
    except (BaseError, ValueError) as error:
        raise Refusal("cannot be fetched: the workspace's storage is not set up as it should be", str(error)) from error


def _sign(store: Any, key: str) -> str:
    import obstore
    from obstore.exceptions import BaseError

    try:
        return str(obstore.sign(store, "GET", key, expires_in=VALID))
    except (BaseError, ValueError) as error:
        raise Refusal("cannot be fetched: the workspace's credentials cannot sign for it", str(error)) from error
