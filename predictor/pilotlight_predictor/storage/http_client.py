"""HTTP(S) client for downloads: redirects counted and checked hop by hop, connections pooled. Blocking.

http.client rather than a larger library: a part is one GET of one range, import time counts in a cold start, and the
connected address must be checked before a request is sent.
"""

import http.client
import socket
import weakref
from base64 import b64encode
from collections.abc import Mapping
from threading import Lock
from typing import NamedTuple
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit, urlunsplit

from pilotlight.wire.messages import redact_uri
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.storage.store_interface import FetchOptions, TransientError
from pilotlight_predictor.storage.uri import is_loopback_host, is_refused

MAX_REDIRECTS = 5
SMALL_BODY = 64 * 1024  # bytes of an unneeded body to read so that its connection can be reused
_SAFE = "/%:@!$&'()*+,;=~"
_REDIRECTS = {301, 302, 303, 307, 308}
_Failure = (OSError, http.client.HTTPException)
_Idle = dict[tuple[bool, str, int, str], list[http.client.HTTPConnection]]


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
        raise LoadFailed(f"{redact_uri(url)}: is not a URL ({error}); write https://host/path") from error
    return parts._replace(path=quote(parts.path, safe=_SAFE), query=quote(parts.query, safe=_SAFE + "?"))


def check_allowed(parts: SplitResult, *, allow_http: bool) -> None:
    host = parts.hostname or ""
    redacted = redact_uri(urlunsplit(parts))
    if not host:
        raise LoadFailed(f"{redacted}: the host is missing; write https://host/path")
    if is_refused(host):
        raise LoadFailed(f"{redacted}: link-local and metadata addresses are not allowed")
    if parts.scheme == "http" and not allow_http and not is_loopback_host(host):
        raise LoadFailed(
            f"{redacted}: plain http:// to other machines is not allowed; use https:// (fetch and pin: --allow-http)"
        )


def next_hop(url: str, target: str, origin: str) -> str:
    """Return the target of a redirect. Raise LoadFailed for https to http, and from another host to loopback."""
    joined = urljoin(url, target)
    after = split_url(joined)
    if after.scheme not in {"http", "https"} or (urlsplit(url).scheme == "https" and after.scheme == "http"):
        raise LoadFailed(f"{redact_uri(url)}: redirects to {redact_uri(joined)}, and a redirect must stay on https")
    if is_loopback_host(after.hostname or "") and not is_loopback_host(urlsplit(origin).hostname or ""):
        raise LoadFailed(f"{redact_uri(url)}: redirects to this machine ({redact_uri(joined)}), which is not allowed")
    return joined


def check_peer(url: str, peer: str, first_peer: str) -> None:
    """Judge a connected address, since a name may resolve to any; `first_peer` is the address before redirects."""
    if is_refused(peer):
        reason = f"the name resolves to {peer}, a link-local or metadata address, which is not allowed"
        raise LoadFailed(f"{redact_uri(url)}: {reason}")
    if is_loopback_host(peer) and not is_loopback_host(first_peer):
        raise LoadFailed(f"{redact_uri(url)}: a redirect leads to this machine ({peer}), which is not allowed")


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


class WebClient:
    """Client shared by the threads of one download. Idle connections are closed when it is garbage collected."""

    def __init__(self, options: FetchOptions) -> None:
        self._options = options
        self._idle: _Idle = {}
        self._lock = Lock()
        weakref.finalize(self, _close_all, self._idle)

    def get(self, url: str, headers: Mapping[str, str], first_peer: str | None = None) -> "StreamedResponse":
        """Return the first response that is no redirect, whatever its status; only the origin gets credentials.

        `first_peer` is the address of the server that named this URL; None: the user did.
        """
        request_headers, current = dict(headers), url
        for _ in range(MAX_REDIRECTS + 1):
            request = plan_request(current, request_headers, _proxy_for(current), allow_http=self._options.allow_http)
            reply = self._send(request, first_peer)
            first_peer = reply.peer if first_peer is None else first_peer
            target = reply.response.headers.get("Location")
            if reply.response.status not in _REDIRECTS or not target:
                return reply
            with reply:
                reply.read(SMALL_BODY)
                current = next_hop(current, target, url)
            if not same_origin(current, url):
                request_headers.pop("Authorization", None)
        raise LoadFailed(f"{redact_uri(url)}: more than {MAX_REDIRECTS} redirects; use the final URL")

    def _send(self, request: DownloadRequest, first_peer: str | None) -> "StreamedResponse":
        with self._lock:
            connections = self._idle.get(request.route)
            idle = connections.pop() if connections else None
        if idle is not None:
            try:
                return self._exchange(idle, request, first_peer)
            except _Failure:  # closed by the server while idle: retry at once on a new connection
                idle.close()
        connection = _connection(request, self._options.timeout)
        try:
            connection.connect()
            return self._exchange(connection, request, first_peer)
        except _Failure as error:
            connection.close()
            raise _translate_error(error, request.url) from error
        except BaseException:
            connection.close()
            raise

    def _exchange(
        self, connection: http.client.HTTPConnection, request: DownloadRequest, first_peer: str | None
    ) -> "StreamedResponse":
        # The address of a proxy is the choice of the operator.
        peer = "" if request.proxy else str(connection.sock.getpeername()[0])
        check_peer(request.url, peer, peer if first_peer is None else first_peer)
        connection.putrequest("GET", request.target, skip_host=True, skip_accept_encoding=True)
        for name, value in request.headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        return StreamedResponse(connection.getresponse(), peer, connection, request, self)

    def release(self, connection: http.client.HTTPConnection, request: DownloadRequest) -> None:
        with self._lock:
            self._idle.setdefault(request.route, []).append(connection)


class StreamedResponse:
    """Response whose body is still to be read. After its end the connection returns to the pool."""

    def __init__(
        self,
        response: http.client.HTTPResponse,
        peer: str,
        connection: http.client.HTTPConnection,
        request: DownloadRequest,
        client: WebClient,
    ) -> None:
        self.response = response
        self.url = request.url  # after redirects
        self.peer = peer  # address that was connected; empty behind a proxy
        self._connection = connection
        self._request = request
        self._client = client

    def __enter__(self) -> "StreamedResponse":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        finished = self.response.isclosed() and not self.response.will_close and error is None
        self.response.close()
        if finished:
            self._client.release(self._connection, self._request)
        else:
            self._connection.close()

    def read(self, size: int) -> bytes:
        try:
            return self.response.read(size)
        except _Failure as error:
            raise TransientError(f"the connection was lost ({type(error).__name__})") from error


def _connection(request: DownloadRequest, timeout: float) -> http.client.HTTPConnection:
    kind = http.client.HTTPSConnection if request.secure else http.client.HTTPConnection
    if request.proxy is None:
        return kind(request.host, request.port, timeout=timeout)
    connection = kind(request.proxy.hostname or "", request.proxy.port or 80, timeout=timeout)
    if request.secure:
        connection.set_tunnel(request.host, request.port, proxy_auth(request.proxy))
    return connection


def _proxy_for(url: str) -> str | None:
    from urllib.request import getproxies, proxy_bypass

    try:
        parts = urlsplit(url)
    except ValueError:  # plan_request reports it with the URL
        return None
    proxy = getproxies().get(parts.scheme) or getproxies().get("all")
    return proxy if proxy and not proxy_bypass(parts.hostname or "") else None


def _translate_error(error: Exception, url: str) -> Exception:
    import ssl

    if isinstance(error, ssl.SSLCertVerificationError):
        advice = "set SSL_CERT_FILE to its certificate authority"
        return LoadFailed(f"{redact_uri(url)}: its certificate is not trusted ({error.verify_message}); {advice}")
    if isinstance(error, socket.gaierror):
        return TransientError(f"the host name cannot be resolved ({error.strerror})")
    strerror = error.strerror if isinstance(error, OSError) else None
    return TransientError(f"no connection ({strerror or type(error).__name__})")


def _close_all(idle: _Idle) -> None:
    for connections in idle.values():
        for connection in connections:
            connection.close()
