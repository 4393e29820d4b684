"""Model URIs as text: parsing, redaction of secrets, and the addresses that downloads may reach. Pure.

The first step of a fetch. Servers of local models import it too, so libraries are imported on first use.
"""

import re
from typing import TYPE_CHECKING, NamedTuple

from pilotlight.wire.messages import redact_uri
from pilotlight_predictor.errors import LoadFailed

if TYPE_CHECKING:
    from ipaddress import IPv4Address, IPv6Address

ALIASES = {"hf_model": "hf", "azure": "az", "gcs": "gs"}
OCI = "oci+fetch"  # host/repository[:tag][@sha256:…]
ARCHIVES = (".tar.gz", ".tgz", ".tar", ".zip")

# Strings instead of compiled patterns: a start with a local model compiles none of them.
_SCHEME = r"^([A-Za-z][A-Za-z0-9+._-]*)://"
_PIN = r"#sha256=([^#]*)$"
_AZURE_BLOB = r"(?i)^[a-z0-9]+\.blob\.(core\.|storage\.)"
_URL_IN_TEXT = r"[A-Za-z][A-Za-z0-9+.-]*://[^\s\"'<>)\]},]+"
# Instance metadata services that are not link-local: AWS over IPv6, Alibaba, Oracle, Azure's wire server.
_METADATA = {"fd00:ec2::254", "100.100.100.200", "192.0.0.192", "168.63.129.16"}


class Location(NamedTuple):
    """Parsed URI: `scheme` is a key of the table of stores, `rest` all after `://` without the pin."""

    scheme: str
    rest: str
    sha256: str = ""

    @property
    def text(self) -> str:
        return f"{self.scheme}://{self.rest}" if self.scheme != "file" else self.rest

    @property
    def redacted(self) -> str:
        return redact_uri(self.text)

    @property
    def filename(self) -> str:
        """Last segment of the path, or the bucket if there is no path."""
        path = self.rest.partition("?")[0] if self.scheme in {"http", "https"} else self.rest
        last = path.rstrip("/").rpartition("/")[2]
        last = last.partition("@")[0] if self.scheme in {"hf", OCI} else last
        return last.partition(":")[0] if self.scheme == OCI else last


def is_remote(uri: str) -> bool:
    """Whether the URI needs a fetch; a path and `file://` do not."""
    scheme = re.match(_SCHEME, uri) if "://" in uri else None
    return scheme is not None and scheme[1].lower() != "file"


def parse(uri: str) -> Location:
    pin = re.search(_PIN, uri)
    sha256 = validate_sha256(pin[1], redact_uri(uri.partition("#")[0])) if pin else ""
    body = uri[: pin.start()] if pin else uri
    match = re.match(_SCHEME, body)
    if match is None:
        return Location("file", body, sha256)
    scheme, rest = match[1].lower(), body[match.end() :]
    if scheme == "file":
        from urllib.parse import unquote

        host, slash, path = rest.partition("/")
        if host not in {"", "localhost"} or not slash:
            raise LoadFailed(f"{redact_uri(uri)}: a file:// URI has no host; write file:///absolute/path")
        return Location("file", "/" + unquote(path), sha256)
    if scheme == "https" and re.match(_AZURE_BLOB, rest) and "?" not in rest:
        scheme = "az"
    return Location(ALIASES.get(scheme, scheme), rest, sha256)


def validate_sha256(value: str, where: str) -> str:
    if not re.fullmatch(r"[0-9a-fA-F]{64}", value):
        raise LoadFailed(f"{where}: sha256 = {value!r}, must be 64 hexadecimal digits")
    return value.lower()


def redact_text(text: str) -> str:
    """Return a library's message on one line, URIs redacted, without its debug output and the server's page: the page
    of a refused request may repeat the signature."""
    first = " ".join(re.split(r"\n\nDebug source|<\?xml|<!doctype|<html", text, flags=re.IGNORECASE)[0].split())
    return re.sub(_URL_IN_TEXT, lambda match: redact_uri(match[0]), first)[:300]


def is_archive(name: str) -> bool:
    return name.lower().endswith(ARCHIVES)


def without_archive_ending(name: str) -> str:
    lowered = name.lower()
    return next((name[: -len(ending)] for ending in ARCHIVES if lowered.endswith(ending)), name)


def safe_relative(path: str) -> bool:
    """Whether an untrusted name is safe as a path below a directory."""
    parts = path.split("/")
    return all(part not in {"", ".", ".."} and "\0" not in part and "\\" not in part for part in parts)


class HubReference(NamedTuple):
    """Parts of a URI of the Hugging Face Hub."""

    repo: str
    revision: str
    path: str


def reference(location: Location) -> HubReference:
    """Parse `org/repo@rev/path` of a hub, or `org/repo:rev` as in KServe."""
    from urllib.parse import unquote

    segments = location.rest.strip("/").split("/")
    owner_and_repo, path = segments[:2], "/".join(segments[2:])
    name, at, revision = owner_and_repo[-1].replace(":", "@", 1).partition("@")
    repo = "/".join([*owner_and_repo[:-1], name])
    if not name or (at and not revision) or (path and not safe_relative(path)):
        raise LoadFailed(f"{location.redacted}: cannot be read; write hf://org/repo[@revision][/path]")
    return HubReference(repo, unquote(revision) or "main", path)


def at_commit(location: Location, commit: str) -> Location:
    """Return the URI with the commit in the place of its branch or tag, or with the digest of a manifest."""
    if location.scheme == OCI:
        return location._replace(rest=f"{location.rest.partition('@')[0]}@sha256:{commit}")
    repo, _, path = reference(location)
    return location._replace(rest=f"{repo}@{commit}/{path}".rstrip("/"))


def is_loopback_host(host: str) -> bool:
    if host.lower() == "localhost" or host.lower().endswith(".localhost"):
        return True
    address = _address(host)
    return address is not None and (address.is_loopback or address.is_unspecified)


def is_loopback_url(url: str) -> bool:
    from urllib.parse import urlsplit

    return is_loopback_host(urlsplit(url).hostname or "")


def is_refused(host: str) -> bool:
    """Whether an IP address belongs to a metadata service or is link-local; False for a host name."""
    address = _address(host)
    return address is not None and (address.is_link_local or str(address) in _METADATA)


def _address(host: str) -> "IPv4Address | IPv6Address | None":
    from ipaddress import IPv4Address, ip_address
    from socket import inet_aton

    text = host.strip("[]").partition("%")[0]
    try:
        address = ip_address(text)
    except ValueError:
        try:
            return IPv4Address(inet_aton(text))  # 127.1 and 2130706433, which getaddrinfo takes as well
        except (OSError, ValueError):
            return None
    return getattr(address, "ipv4_mapped", None) or address
