"""GET over HTTP(S) for downloads: redirects counted and checked hop by hop, proxies honoured, peers looked at.

The standard library's client is used rather than a larger one: a part is one GET of one range, import time counts on
a cold start, and the address that was really connected to must be seen before a request is sent.
"""

import http.client
import socket
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit, urlunsplit

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.storage.addresses import is_loopback_host, is_refused
from pilotlight_predictor.storage.interface import FetchOptions, Transient
from pilotlight_predictor.storage.uri import redact

MAX_REDIRECTS = 5
_PATH_SAFE = "/%:@!$&'()*+,;=~"
_REDIRECTS = {301, 302, 303, 307, 308}


@dataclass(slots=True)
class Reply:
    """An answer whose body is still to be read; leaving the `with` block drops the connection."""

    response: http.client.HTTPResponse
    connection: http.client.HTTPConnection
    url: str

    def __enter__(self) -> "Reply":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.response.close()
        self.connection.close()

    def read(self, size: int) -> bytes:
        try:
            return self.response.read(size)
        except (OSError, http.client.HTTPException) as error:
            raise Transient(f"the connection broke: {type(error).__name__}") from error


def get(url: str, headers: Mapping[str, str], options: FetchOptions) -> Reply:
    """Follows redirects to the first other answer, whatever its status; credentials stay with their origin."""
    sent = dict(headers)
    origin = _split(url)
    for _ in range(MAX_REDIRECTS + 1):
        reply = _get_once(url, sent, options)
        target = reply.response.headers.get("Location")
        if reply.response.status not in _REDIRECTS or not target:
            return reply
        with reply:
            url = _next_hop(url, target, origin)
        if _origin(urlsplit(url)) != _origin(origin):
            sent.pop("Authorization", None)
    raise LoadFailed(f"{redact(urlunsplit(origin))}: more than {MAX_REDIRECTS} redirects; use the final URL")


def _split(url: str) -> SplitResult:
    """Takes a URL apart, with what may not stand in a request line encoded and what is encoded left alone."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise LoadFailed(f"{redact(url)}: is no URL ({error}); write https://host/path") from error
    return parts._replace(path=quote(parts.path, safe=_PATH_SAFE), query=quote(parts.query, safe=_PATH_SAFE + "?"))


def _next_hop(url: str, target: str, origin: SplitResult) -> str:
    joined = urljoin(url, target)
    after = _split(joined)
    if after.scheme not in {"http", "https"} or (urlsplit(url).scheme == "https" and after.scheme == "http"):
        raise LoadFailed(f"{redact(url)}: redirects to {redact(joined)}, and a redirect must stay on https")
    if is_loopback_host(after.hostname or "") and not is_loopback_host(origin.hostname or ""):
        raise LoadFailed(f"{redact(url)}: redirects to this machine ({redact(joined)}), which is refused")
    return joined


def _origin(parts: SplitResult) -> tuple[str, str | None, int | None]:
    return parts.scheme, parts.hostname, parts.port


def _get_once(url: str, headers: Mapping[str, str], options: FetchOptions) -> Reply:
    parts = _split(url)
    check_allowed(parts, options)
    proxy = _proxy(parts)
    connection = _connection(parts, proxy, options.timeout)
    sent = {"Host": parts.netloc.rpartition("@")[2], "Accept-Encoding": "identity", **_basic(parts), **headers}
    through = proxy if parts.scheme == "http" else None
    target = urlunsplit((parts.scheme, sent["Host"], parts.path or "/", parts.query, "")) if through else _target(parts)
    if through:
        sent |= {f"Proxy-{name}": value for name, value in _basic(through).items()}
    try:
        connection.connect()
        if proxy is None:
            _check_peer(connection, url)
        connection.putrequest("GET", target, skip_host=True, skip_accept_encoding=True)
        for name, value in sent.items():
            connection.putheader(name, value)
        connection.endheaders()
        return Reply(connection.getresponse(), connection, url)
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        raise _named(error, url) from error
    except BaseException:
        connection.close()
        raise


def check_allowed(parts: SplitResult, options: FetchOptions) -> None:
    host = parts.hostname or ""
    shown = redact(urlunsplit(parts))
    if not host:
        raise LoadFailed(f"{shown}: the host is missing; write https://host/path")
    if is_refused(host):
        raise LoadFailed(f"{shown}: link-local and metadata addresses are refused; models are not served from there")
    if parts.scheme == "http" and not options.allow_http and not is_loopback_host(host):
        raise LoadFailed(f"{shown}: plain http:// is refused beyond this machine; use https:// or allow http downloads")


def _check_peer(connection: http.client.HTTPConnection, url: str) -> None:
    """A name may resolve to what a literal address would be refused for."""
    peer = str(connection.sock.getpeername()[0])
    if is_refused(peer):
        raise LoadFailed(
            f"{redact(url)}: the name resolves to {peer}, a link-local or metadata address, which is refused"
        )


def _proxy(parts: SplitResult) -> SplitResult | None:
    from urllib.request import getproxies, proxy_bypass

    host = parts.hostname or ""
    found = getproxies().get(parts.scheme) or getproxies().get("all")
    if not found or is_loopback_host(host) or proxy_bypass(host):
        return None
    return urlsplit(found if "://" in found else f"http://{found}")


def _connection(parts: SplitResult, proxy: SplitResult | None, timeout: float) -> http.client.HTTPConnection:
    secure = parts.scheme == "https"
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    host, port = parts.hostname or "", parts.port or (443 if secure else 80)
    if proxy is None:
        return kind(host, port, timeout=timeout)
    connection = kind(proxy.hostname or "", proxy.port or 80, timeout=timeout)
    if secure:
        connection.set_tunnel(host, port, {f"Proxy-{name}": value for name, value in _basic(proxy).items()})
    return connection


def _basic(parts: SplitResult) -> dict[str, str]:
    if parts.username is None:
        return {}
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {"Authorization": "Basic " + b64encode(pair.encode()).decode()}


def _target(parts: SplitResult) -> str:
    return urlunsplit(("", "", parts.path or "/", parts.query, ""))


def _named(error: Exception, url: str) -> Exception:
    import ssl

    if isinstance(error, ssl.SSLCertVerificationError):
        reason = error.verify_message
        return LoadFailed(
            f"{redact(url)}: its certificate is not trusted ({reason}); set SSL_CERT_FILE to its authority"
        )
    if isinstance(error, socket.gaierror):
        return Transient(f"the host name cannot be resolved ({error.strerror})")
    return Transient(
        f"no connection ({error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__})"
    )
