"""Preparation of a GET: URL, proxy, request line, headers, and the redirects that may be followed. Pure."""

from base64 import b64encode
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit, urlunsplit

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.storage.addresses import is_loopback_host, is_refused
from pilotlight_predictor.storage.uri import redact

_SAFE = "/%:@!$&'()*+,;=~"


class DownloadRequest(NamedTuple):
    """Request to send. `proxy` is None for a direct connection; requests with the same `route` may share one."""

    url: str
    secure: bool
    host: str
    port: int
    proxy: SplitResult | None
    target: str
    headers: dict[str, str]

    @property
    def route(self) -> tuple[bool, str, int, str]:
        return self.secure, self.host, self.port, self.proxy.netloc if self.proxy else ""


def plan_request(url: str, headers: Mapping[str, str], proxy: str | None, *, allow_http: bool) -> DownloadRequest:
    """Return the request. `proxy` is that of the environment; loopback hosts are always connected directly."""
    parts = split_url(url)
    check_allowed(parts, allow_http=allow_http)
    host, secure = parts.hostname or "", parts.scheme == "https"
    via = urlsplit(proxy if "://" in proxy else f"http://{proxy}") if proxy and not is_loopback_host(host) else None
    authority = parts.netloc.rpartition("@")[2]
    headers = {"Host": authority, "Accept-Encoding": "identity", **basic_auth(parts), **headers}
    target = urlunsplit(("", "", parts.path or "/", parts.query, ""))
    if via and not secure:
        target = urlunsplit((parts.scheme, authority, parts.path or "/", parts.query, ""))
        headers |= proxy_auth(via)
    return DownloadRequest(url, secure, host, parts.port or (443 if secure else 80), via, target, headers)


def split_url(url: str) -> SplitResult:
    """Split a URL; characters that a request line cannot have are percent-encoded, existing escapes stay."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise LoadFailed(f"{redact(url)}: is no URL ({error}); write https://host/path") from error
    return parts._replace(path=quote(parts.path, safe=_SAFE), query=quote(parts.query, safe=_SAFE + "?"))


def check_allowed(parts: SplitResult, *, allow_http: bool) -> None:
    host = parts.hostname or ""
    redacted = redact(urlunsplit(parts))
    if not host:
        raise LoadFailed(f"{redacted}: the host is missing; write https://host/path")
    if is_refused(host):
        raise LoadFailed(f"{redacted}: link-local and metadata addresses are refused; models are not served from there")
    if parts.scheme == "http" and not allow_http and not is_loopback_host(host):
        raise LoadFailed(
            f"{redacted}: plain http:// is refused beyond this machine; use https:// or allow http downloads"
        )


def next_hop(url: str, target: str, origin: str) -> str:
    """Return the target of a redirect. Raise LoadFailed for https to http, and from another host to loopback."""
    joined = urljoin(url, target)
    after = split_url(joined)
    if after.scheme not in {"http", "https"} or (urlsplit(url).scheme == "https" and after.scheme == "http"):
        raise LoadFailed(f"{redact(url)}: redirects to {redact(joined)}, and a redirect must stay on https")
    if is_loopback_host(after.hostname or "") and not is_loopback_host(urlsplit(origin).hostname or ""):
        raise LoadFailed(f"{redact(url)}: redirects to this machine ({redact(joined)}), which is refused")
    return joined


def same_origin(first: str, second: str) -> bool:
    one, other = urlsplit(first), urlsplit(second)
    return (one.scheme, one.hostname, one.port) == (other.scheme, other.hostname, other.port)


def basic_auth(parts: SplitResult) -> dict[str, str]:
    if parts.username is None:
        return {}
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {"Authorization": "Basic " + b64encode(pair.encode()).decode()}


def proxy_auth(parts: SplitResult) -> dict[str, str]:
    return {f"Proxy-{name}": value for name, value in basic_auth(parts).items()}
