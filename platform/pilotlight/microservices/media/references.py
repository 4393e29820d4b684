"""Parser of media references: a path, a web address, an object in a bucket. Pure.

Check and fetch share it, and it rejects what it does not understand: hosts that two parsers read differently would
bypass the check.
"""

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote, unquote, urljoin, urlsplit

from msgspec import Struct

from pilotlight.microservices.media.limits import MediaError

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_HOST: Final = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?|\[[0-9a-f:.]+\]")
BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_BLOB: Final = re.compile(r"([a-z0-9]{3,24})\.blob\.core\.windows\.net")
_SAFE: Final = "/%:@!$&'()*+,;=~?-._"
OBJECTS: Final = {"s3": "s3", "aws": "s3", "az": "az", "azure": "az"}
MAX_LENGTH: Final = 4096


class LocalFile(Struct, frozen=True):
    path: str


class WebAddress(Struct, frozen=True):
    """A parsed URL. `host` has no brackets and no trailing dot; `target` is that of the request line."""

    secure: bool
    host: str
    port: int
    target: str

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.secure else 80) else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self.secure else 'http'}://{self.authority}{self.target}"

    @property
    def redacted_url(self) -> str:
        """URL without the query, which may contain a signature."""
        return self.url.partition("?")[0]


class StoredObject(Struct, frozen=True):
    """An object in a bucket. `account`: of an Azure URL that names one, else the workspace's applies."""

    scheme: str
    bucket: str
    key: str
    account: str = ""


Reference = LocalFile | WebAddress | StoredObject


def parse(text: str) -> Reference:
    if not text or len(text) > MAX_LENGTH or any(ord(character) < 0x20 or character == "\x7f" for character in text):
        raise MediaError(f"is not a reference: it must be 1 to {MAX_LENGTH} printable characters")
    match = _SCHEME.match(text)
    if match is None:
        return LocalFile(text)
    scheme = match[1].lower()
    if scheme == "file":
        host, slash, path = text[match.end() :].partition("/")
        if host not in {"", "localhost"} or not slash:
            raise MediaError("is not a file address: write file:///absolute/path")
        return LocalFile("/" + unquote(path))
    if scheme in OBJECTS:
        return _stored(OBJECTS[scheme], text[match.end() :])
    if scheme in {"http", "https"}:
        return _blob(parse_web(text))
    raise MediaError(f"has the scheme {scheme}://, must be a path or https://, s3:// or az://")


def _stored(scheme: str, rest: str) -> StoredObject:
    bucket, _, key = rest.partition("/")
    if not BUCKET.fullmatch(bucket) or not key or any(part in {"", ".", ".."} for part in key.split("/")):
        raise MediaError(f"is not an object: write {scheme}://bucket/path/to/file")
    return StoredObject(scheme, bucket, key)


def parse_web(text: str) -> WebAddress:
    """Parse a URL. Raise for what parsers read differently: backslashes, blanks, users, encoded hosts."""
    if "\\" in text or " " in text:
        raise MediaError("is not an address: backslashes and blanks must be encoded")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise MediaError("is not an address: write https://host/path") from None
    if parts.username is not None or parts.password is not None:
        raise MediaError("has a user or password in its address, which is not allowed")
    host = parts.netloc.rpartition(":")[0] if port is not None else parts.netloc.rstrip(":")
    host = host.lower().removesuffix(".")
    if not _HOST.fullmatch(host) or port == 0:
        raise MediaError("is not an address: its host must be a name in plain letters or an IP address")
    secure = parts.scheme.lower() == "https"
    query = f"?{quote(parts.query, safe=_SAFE)}" if parts.query else ""
    target = quote(parts.path or "/", safe=_SAFE.replace("?", "")) + query
    return WebAddress(secure, host.strip("[]"), port or (443 if secure else 80), target)


def _blob(address: WebAddress) -> Reference:
    """Return a blob URL without a signature as a stored object, read with the workspace's credentials."""
    match = _BLOB.fullmatch(address.host)
    if match is None or not address.secure or "?" in address.target:
        return address
    stored = _stored("az", unquote(address.target).lstrip("/"))
    return StoredObject("az", stored.bucket, stored.key, match[1])


def redirect_target(address: WebAddress, location: str) -> WebAddress:
    """Return the target of a redirect. Raise for one from https to http."""
    target = parse_web(urljoin(address.url, location))
    if address.secure and not target.secure:
        raise MediaError("is redirected from https to http, which is not allowed")
    return target


def is_listed(host: str, domains: Sequence[str]) -> bool:
    """Return whether a host matches: `example.com` exactly, `.example.com` with subdomains, `*` any."""
    names = [each.lower().removesuffix(".") for each in domains]
    above = tuple(name for name in names if name.startswith("."))
    return "*" in names or host in (name.removeprefix(".") for name in names) or host.endswith(above)
