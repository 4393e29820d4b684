"""Where media are: files below the operator's roots, objects in a workspace's store, and links for a container.

Presigning makes no connection, so that ssrf_safe_client.py checks and pins all addresses. Without credentials in the
workspace the object must be public: none are taken from the environment. Later DNS changes and redirects in a container
are not checked: docs/reference/microservices-api.md.
"""

import base64
import hashlib
import hmac
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import PurePosixPath
from typing import Any, Final
from urllib.parse import quote, urlencode

from pilotlight.errors import PlatformError, UsageError
from pilotlight.k8s.timestamps import format_utc
from pilotlight.microservices.media import ssrf_safe_client
from pilotlight.microservices.media.images import Media
from pilotlight.microservices.media.limits import Limits, MediaError, MediaRefused, refused_as
from pilotlight.microservices.media.references import LocalFile, StoredObject, WebAddress, parse, parse_web
from pilotlight.microservices.media.ssrf_safe_client import FetchBudget
from pilotlight.microservices.registry import secret_references
from pilotlight.microservices.registry.records import Workspace

URL_TTL: Final = timedelta(minutes=15)
TIMEOUTS: Final = {"connect_timeout": timedelta(seconds=10), "timeout": timedelta(minutes=10)}
RETRIES: Final = {"max_retries": 2, "retry_timeout": timedelta(seconds=30)}
AZURE_VERSION: Final = "2022-11-02"
VIDEOS: Final = frozenset({".mp4", ".m4v", ".mov", ".webm", ".mkv", ".avi"})
INSTALL: Final = "object stores need obstore, which the operator installs with the cloud extra"
NOT_ALLOWED: Final = "is not an allowed file for media; the operator allows folders with PILOTLIGHT_MEDIA_ROOTS"


def read(file: LocalFile, budget: FetchBudget) -> bytes:
    """Read a file below one of the roots without following symlinks; a relative path is tried in every root."""
    for root in budget.limits.roots:
        plain, path = os.path.normpath(root), PurePosixPath(os.path.normpath(os.path.join(root, file.path)))
        if not path.is_relative_to(plain):
            continue
        with _open(root, path.relative_to(plain).parts) as descriptor:
            if descriptor is not None:
                return ssrf_safe_client.read_limited(partial(os.read, descriptor), budget)
    roots = ", ".join(budget.limits.roots) or "any allowed folder"
    raise MediaError(NOT_ALLOWED, f"{file.path}: not a file below {roots}")


@contextmanager
def _open(root: str, inside: tuple[str, ...]) -> Iterator[int | None]:
    """Open the file one component at a time with O_NOFOLLOW, safe against symlink races; None: no such file."""
    folder, plain = os.O_RDONLY | os.O_DIRECTORY, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    with ExitStack() as stack:
        try:
            parent = os.open(root, folder)
            stack.callback(os.close, parent)
            for part in inside[:-1]:
                parent = os.open(part, folder | os.O_NOFOLLOW, dir_fd=parent)
                stack.callback(os.close, parent)
            descriptor = os.open(inside[-1], plain, dir_fd=parent) if inside else None
        except OSError:
            descriptor = None
        if descriptor is not None:
            stack.callback(os.close, descriptor)
            descriptor = descriptor if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
        yield descriptor


def locate(text: str, workspace: Workspace | None, environ: Mapping[str, str]) -> tuple[LocalFile | WebAddress, bool]:
    """Return the file or address of a reference, and whether the address is one of the workspace's own store."""
    reference = parse(text)
    if not isinstance(reference, StoredObject):
        return reference, False
    if workspace is None:
        raise MediaError("is in an object store, but no workspace has its credentials")
    return sign_url(reference, workspace, environ), True


def sign_url(stored: StoredObject, workspace: Workspace, environ: Mapping[str, str] = os.environ) -> WebAddress:
    """Return a presigned address of the object, valid for 15 minutes."""
    try:
        credentials = secret_references.values(workspace, environ)
    except UsageError as error:
        raise MediaError("cannot be fetched: the workspace's credentials are not set", str(error)) from error
    if stored.scheme != "s3":
        return parse_web(_azure_address(stored, workspace, credentials))
    if not credentials:
        return parse_web(f"{_s3_endpoint(workspace)}/{stored.bucket}/{quote(stored.key)}")
    store = open_bucket(stored.bucket, "s3", workspace, credentials)
    import obstore
    from obstore.exceptions import BaseError

    try:
        return parse_web(str(obstore.sign(store, "GET", stored.key, expires_in=URL_TTL)))
    except (BaseError, ValueError) as error:
        raise MediaError("cannot be fetched: the workspace's credentials cannot sign for it", str(error)) from error


def _azure_address(stored: StoredObject, workspace: Workspace, credentials: Mapping[str, str]) -> str:
    account = stored.account or workspace.account
    if stored.account and workspace.account and stored.account != workspace.account:  # credentials must not go there
        raise MediaError(f"is in the account {stored.account}, and the workspace's is {workspace.account}")
    if not account:
        raise MediaError("cannot be fetched: the workspace names no Azure account")
    front = workspace.endpoint.rstrip("/") or f"https://{account}.blob.core.windows.net"
    token = credentials.get("sas_token", "").lstrip("?")
    if "account_key" in credentials:
        resource = f"/blob/{account}/{stored.bucket}/{stored.key}"
        token = azure_signature(resource, credentials["account_key"], datetime.now(UTC) + URL_TTL)
    return f"{front}/{stored.bucket}/{quote(stored.key)}" + (f"?{token}" if token else "")


def azure_signature(resource: str, key: str, ends: datetime) -> str:
    """Return a service SAS to read one blob. obstore signs the encoded name, which Azure does not accept."""
    expiry = format_utc(ends, "seconds")
    fields = ["r", "", expiry, resource, "", "", "", AZURE_VERSION, "b", *[""] * 7]
    try:
        secret = base64.b64decode(key, validate=True)
    except ValueError as error:
        raise MediaError("cannot be fetched: the workspace's account_key is not valid", "it is not base64") from error
    mac = hmac.digest(secret, "\n".join(fields).encode(), hashlib.sha256)
    return urlencode({"sv": AZURE_VERSION, "sr": "b", "sp": "r", "se": expiry, "sig": base64.b64encode(mac).decode()})


def _s3_endpoint(workspace: Workspace) -> str:
    return workspace.endpoint.rstrip("/") or f"https://s3.{workspace.region}.amazonaws.com"


def open_bucket(bucket: str, scheme: str, workspace: Workspace, credentials: Mapping[str, str]) -> Any:
    """Return obstore's store. All settings are explicit: obstore would take missing ones from the environment."""
    try:
        from obstore import store
        from obstore.exceptions import BaseError
    except ImportError:
        raise PlatformError(INSTALL) from None
    config = {"skip_signature": str(not credentials).lower()}
    values: dict[str, Any] = {"expires_at": None}
    if scheme == "s3":
        config |= {"region": workspace.region, "endpoint": _s3_endpoint(workspace)}
        values |= {"access_key_id": credentials.get("access_key", ""), "token": credentials.get("session_token"),
                   "secret_access_key": credentials.get("secret_key", "")}  # fmt: skip
    else:
        config |= {"account_name": workspace.account}
        config |= {"endpoint": workspace.endpoint} if workspace.endpoint else {}
        token = {"sas_token": credentials.get("sas_token", "").lstrip("?")}
        values |= {"access_key": credentials["account_key"]} if "account_key" in credentials else token
    options = {**TIMEOUTS, **({"allow_http": True} if workspace.endpoint.startswith("http://") else {})}
    provider = {"credential_provider": lambda: values} if credentials else {}
    kind: Any = store.S3Store if scheme == "s3" else store.AzureStore
    try:
        return kind(bucket, config=config, client_options=options, retry_config=RETRIES, **provider)
    except (BaseError, ValueError) as error:
        message = "cannot be fetched: the workspace's storage is not set up correctly"
        raise MediaError(message, str(error)) from error


def links(
    references: Sequence[str], workspace: Workspace | None, limits: Limits, environ: Mapping[str, str]
) -> list[Media]:
    """Return the links of one request, in its order."""
    if len(references) > limits.count:
        raise MediaRefused(f"media has {len(references)} entries, must be at most {limits.count}")
    return [link(text, workspace, limits, environ, at) for at, text in enumerate(references)]


def link(text: str, workspace: Workspace | None, limits: Limits, environ: Mapping[str, str], at: int = -1) -> Media:
    """Return the link of one reference; image or video is decided by its name. `at`: its index in the request."""
    with refused_as(at):
        address, own = locate(text, workspace, environ)
        if isinstance(address, LocalFile):
            raise MediaError("is a path, but this model fetches media from https, s3 or az addresses")
        url = ssrf_safe_client.check_address(address, limits, trusted=own).url
    name = PurePosixPath(text.partition("?")[0]).name
    return Media(name, "video" if PurePosixPath(name).suffix.lower() in VIDEOS else "image", link=url)
