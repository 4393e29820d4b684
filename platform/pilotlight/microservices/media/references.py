"""What names a medium, taken apart: a path, a web address, an object in a bucket. One parser for check and fetch. Pure.

What it does not understand it refuses: a host that two parsers read differently is how a check is passed by.
"""

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote, unquote, urljoin, urlsplit

from msgspec import Struct

from pilotlight.microservices.media.refusals import Refusal

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_HOST: Final = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?|\[[0-9a-f:.]+\]")
BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_BLOB: Final = re.compile(r"([a-z0-9]{3,24})\.blob\.core\.windows\.net")
_SAFE: Final = "/%:@!$&'()*+,;=~?-._"
OBJECTS: Final = {"s3": "s3", "aws": "s3", "az": "az", "azure": "az"}
LONGEST: Final = 4096


class LocalFile(Struct, frozen=True):
    path: str


class WebAddress(Struct, frozen=True):
    """`host` has no brackets and no trailing dot; `target` is what stands in the request line."""

    secure: bool
    host: str
    port: int
    target: str

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.secure else 80) else f"{host}:{self.port}"

    @property
    def whole(self) -> str:
        return f"{'https' if self.secure else 'http'}://{self.authority}{self.target}"

    @property
    def shown(self) -> str:
        """Without the query, where signatures travel."""
        return self.whole.partition("?")[0]


class StoredObject(Struct, frozen=True):
    """`account` is that of an Azure address which names it; else the workspace's is meant."""

    scheme: str
    bucket: str
    key: str
    account: str = ""


Reference = LocalFile | WebAddress | StoredObject


def parse(text: str) -> Reference:
    if not text or len(text) > LONGEST or any(ord(character) < 0x20 or character == "\x7f" for character in text):
        raise Refusal(f"is no reference: it must be 1 to {LONGEST} printable characters")
    found = _SCHEME.match(text)
    if found is None:
        return LocalFile(text)
    scheme = found[1].lower()
    if scheme == "file":
        return LocalFile(_path(text[found.end() :]))
    if scheme in OBJECTS:
        return _stored(OBJECTS[scheme], text[found.end() :])
    if scheme in {"http", "https"}:
        return _blob(web(text))
    raise Refusal(f"has the scheme {scheme}://, must be a path or https://, s3:// or az://")


def _path(rest: str) -> str:
    host, slash, path = rest.partition("/")
    if host not in {"", "localhost"} or not slash:
        raise Refusal("is no file address: write file:///absolute/path")
    return "/" + unquote(path)


def _stored(scheme: str, rest: str) -> StoredObject:
    bucket, _, key = rest.partition("/")
    if not BUCKET.fullmatch(bucket) or not key or any(part in {"", ".", ".."} for part in key.split("/")):
        raise Refusal(f"is no object: write {scheme}://bucket/path/to/file")
    return StoredObject(scheme, bucket, key)


def web(text: str) -> WebAddress:
    """Refuses what browsers and libraries read in different ways: backslashes, blanks, users, encoded hosts."""
    if "\\" in text or " " in text:
        raise Refusal("is no address: backslashes and blanks must be encoded")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise Refusal("is no address: write https://host/path") from None
    if parts.username is not None or parts.password is not None:
        raise Refusal("has a user or password in its address, which are not taken")
    host = parts.netloc.rpartition(":")[0] if port is not None else parts.netloc.rstrip(":")
    host = host.lower().removesuffix(".")
    if not _HOST.fullmatch(host) or port == 0:
        raise Refusal("is no address: its host must be a name in plain letters or an IP address")
    secure = parts.scheme.lower() == "https"
    query = f"?{quote(parts.query, safe=_SAFE)}" if parts.query else ""
    target = quote(parts.path or "/", safe=_SAFE.replace("?", "")) + query
    return WebAddress(secure, host.strip("[]"), port or (443 if secure else 80), target)


def _blob(address: WebAddress) -> Reference:
    """A blob by its web address without a signature is asked for with the workspace's credentials."""
    found = _BLOB.fullmatch(address.host)
    if found is None or not address.secure or "?" in address.target:
        return address
    stored = _stored("az", unquote(address.target).lstrip("/"))
    return StoredObject("az", stored.bucket, stored.key, found[1])


def redirected(address: WebAddress, location: str) -> WebAddress:
    """Where an answer sends to; from https only to https."""
    target = web(urljoin(address.whole, location))
    if address.secure and not target.secure:
        raise Refusal("is redirected from https to http, which is refused")
    return target


def listed(host: str, domains: Sequence[str]) -> bool:
    """`example.com` is that host, `.example.com` also every host below it, `*` any."""
    for domain in (each.lower().removesuffix(".") for each in domains):
        if domain == "*" or host == domain.removeprefix("."):
            return True
        if domain.startswith(".") and host.endswith(domain):
            return True
    return False
