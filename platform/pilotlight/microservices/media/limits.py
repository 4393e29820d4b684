"""Limits and allowed sources of media, the operator's settings, and the errors of media. Pure.

By default no source is allowed: no folder of this machine, no web host, no private network. A client must not learn
about the network behind this service, so all failures of addresses, names and connections have the same message.
"""

import ipaddress
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from msgspec import Struct

from pilotlight.errors import UsageError

MIB: Final = 1024 * 1024
PREFIX: Final = "PILOTLIGHT_MEDIA_"
ENV_WORKSPACES: Final = "PILOTLIGHT_WORKSPACE_ROOTS"
LOG: Final = logging.getLogger("pilotlight.media")
UNREACHABLE: Final = "could not be fetched; check the address, or let the operator check the log"
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Limits(Struct, frozen=True):
    """Limits of media. `pixels`: of one image; `decoded_pixels`: of all frames of one file in memory."""

    roots: tuple[str, ...] = ()  # folders of this machine that may be read
    workspaces: tuple[str, ...] = ()  # folders whose subfolder ORG that org may read and write
    domains: tuple[str, ...] = ()  # web hosts; `.example.com` includes subdomains, `*` is any public host
    networks: tuple[str, ...] = ()  # permitted private networks, such as 10.1.0.0/16
    allow_http: bool = False
    redirects: int = 0
    count: int = 32
    at_once: int = 8
    bytes: int = 64 * MIB
    total_bytes: int = 256 * MIB
    seconds: float = 60.0
    pixels: int = 50_000_000
    frames: int = 3600
    decoded_pixels: int = 200_000_000

    def permitted(self) -> tuple[Network, ...]:
        return tuple(ipaddress.ip_network(each) for each in self.networks)


_LISTS: Final = {
    PREFIX + "ROOTS": "roots", PREFIX + "DOMAINS": "domains", PREFIX + "NETWORKS": "networks",
    ENV_WORKSPACES: "workspaces",
}  # fmt: skip
_NUMBERS: Final = {
    "REDIRECTS": "redirects", "MAX_FILES": "count", "AT_ONCE": "at_once", "MAX_BYTES": "bytes",
    "MAX_TOTAL_BYTES": "total_bytes", "MAX_SECONDS": "seconds", "MAX_PIXELS": "pixels", "MAX_FRAMES": "frames",
    "MAX_KEPT_PIXELS": "decoded_pixels",
}  # fmt: skip
SETTINGS: Final = (*_LISTS, PREFIX + "ALLOW_HTTP", *(PREFIX + name for name in _NUMBERS))


def limits_from(environ: Mapping[str, str]) -> Limits:
    """Read PILOTLIGHT_MEDIA_ROOTS, …_DOMAINS, …_NETWORKS (comma separated), …_ALLOW_HTTP, …_MAX_BYTES …, and
    PILOTLIGHT_WORKSPACE_ROOTS."""
    fields: dict[str, object] = {}
    for name, field in _LISTS.items():
        if text := environ.get(name, "").strip():
            fields[field] = tuple(each.strip() for each in text.split(",") if each.strip())
    for name, field in _NUMBERS.items():
        if text := environ.get(PREFIX + name, "").strip():
            least = 0 if name == "REDIRECTS" else 1
            if not text.isascii() or not text.isdigit() or int(text) < least:
                raise UsageError(f"{PREFIX}{name} = {text}, must be a whole number of {least} or more")
            fields[field] = int(text)
    flag = environ.get(PREFIX + "ALLOW_HTTP", "")
    if flag.lower() not in {"", "0", "1", "false", "true"}:
        raise UsageError(f"{PREFIX}ALLOW_HTTP = {flag}, must be true or false")
    fields["allow_http"] = flag.lower() in {"1", "true"}
    limits = Limits(**fields)  # type: ignore[arg-type]
    try:
        limits.permitted()
    except ValueError as error:
        raise UsageError(f"{PREFIX}NETWORKS: {error}; write networks as 10.1.0.0/16") from None
    return limits


class MediaRefused(UsageError):
    """A rejected medium, or all media of a request together."""


class MediaError(Exception):
    """Failure of one medium: `message` is for the client, `reason` for the log, `status` of a workspace's store."""

    def __init__(self, message: str, reason: str = "", status: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or message
        self.status = status


@contextmanager
def refused_as(at: int) -> Iterator[None]:
    """Raise MediaRefused for a MediaError of the medium at this index of the request, or of none in particular (-1).

    The reason is in the log only.
    """
    try:
        yield
    except MediaError as error:
        LOG.warning("media[%d] was rejected: %s", at, error.reason)
        raise MediaRefused(f"media[{at}] {error.message}" if at >= 0 else error.message) from error


def unreachable(reason: str) -> MediaError:
    return MediaError(UNREACHABLE, reason)
