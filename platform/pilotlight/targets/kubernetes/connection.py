"""HTTP requests to one API server: credentials like kubectl, plain JSON, and errors with hints.

The official client library reads kubeconfig and in-cluster credentials, renews tokens and pools connections. Its models
are not used: objects may be of any kind, including custom resources.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from msgspec import DecodeError, json

from pilotlight.errors import Conflict, NotFound, PlatformError

Json = Any
ANSWER_S: Final = 30.0
# Retry for this time: an API server restarts within it.
RETRY_S: Final = 45.0
PAUSE_S: Final = 0.5
UNAVAILABLE: Final = (429, 502, 503, 504)
SERVER_APPLY: Final = "application/apply-patch+yaml"
MERGE: Final = "application/merge-patch+json"
HINTS: Final = {
    401: "the credentials of the kubeconfig are not accepted: log in again",
    403: "platformctl doctor --target kubernetes lists which rights are missing",
}


class KubeApiError(PlatformError):
    """Error response of the API server; `status` is its Status object."""

    def __init__(self, code: int, status: Mapping[str, Json], request_line: str) -> None:
        self.code = code
        self.status = status
        self.reason = str(status.get("reason") or "")
        super().__init__(f"{request_line}: {status.get('message') or f'answered {code}'}", HINTS.get(code, ""))


@dataclass(frozen=True, slots=True)
class KubeResponse:
    document: Json
    warnings: tuple[str, ...] = ()  # Warning headers


class KubeConnection:
    """Connection pool to one API server; thread-safe."""

    def __init__(
        self, api: Any, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.api = api
        self._clock, self._sleep = clock, sleep

    def request(
        self, method: str, path: str, query: Mapping[str, str] | None = None, body: Json = None,
        content_type: str = "application/json",
    ) -> KubeResponse:  # fmt: skip
        """Send a request. Raises NotFound, Conflict (already exists) or ApiError. Retries while the server restarts."""
        until = self._clock() + RETRY_S
        while True:
            try:
                response = self._send(method, path, query, body, content_type)
            except OSError as error:
                if self._clock() >= until or _is_permanent(error):
                    raise _unreachable(self.api.configuration.host, error) from error
            else:
                if response.status not in UNAVAILABLE or self._clock() >= until:
                    return _read(response, f"{method} {path}")
            self._sleep(PAUSE_S)

    def text(self, path: str, query: Mapping[str, str] | None = None) -> list[str]:
        """Return the lines of a plain-text response, such as the end of a log."""
        try:
            response = self._send("GET", path, query, None, "application/json")
        except OSError as error:
            raise _unreachable(self.api.configuration.host, error) from error
        if response.status >= 400:
            _read(response, f"GET {path}")
        return str(response.data.decode(errors="replace")).splitlines()

    def lines(self, path: str, query: Mapping[str, str] | None = None) -> Iterator[bytes]:
        """Stream lines, such as a log or a watch, until the server ends it. Raises OSError if it breaks."""
        from urllib3.exceptions import HTTPError

        response = self._send("GET", path, query, None, "application/json", timeout=None)
        try:
            if response.status >= 400:
                _read(response, f"GET {path}")
            rest = b""
            for piece in response.stream(65536, decode_content=True):
                *complete, rest = (rest + piece).split(b"\n")
                yield from complete
            if rest:
                yield rest
        except HTTPError as error:
            raise OSError(str(error)) from error
        finally:
            response.close()

    def _send(
        self, method: str, path: str, query: Mapping[str, str] | None, body: Json, content_type: str,
        timeout: float | None = ANSWER_S,
    ) -> Any:  # fmt: skip
        from urllib3.exceptions import HTTPError

        configuration = self.api.configuration
        headers = {"accept": "application/json", "content-type": content_type, "user-agent": "pilotlight"}
        headers |= {each["key"]: each["value"] for each in configuration.auth_settings().values() if each["value"]}
        url = configuration.host + path + (f"?{urlencode(query)}" if query else "")
        try:
            return self.api.rest_client.pool_manager.request(
                method, url, body=None if body is None else json.encode(body), headers=headers, timeout=timeout,
                preload_content=timeout is not None, retries=False, redirect=False,
            )  # fmt: skip
        except HTTPError as error:
            raise OSError(str(error)) from error


def connect(context: str = "") -> KubeConnection:
    """Connect by a context of the kubeconfig (default: the current one), or in a pod by its service account."""
    try:
        from kubernetes import client, config
    except ModuleNotFoundError as error:
        message = "the Kubernetes client library is not installed"
        raise PlatformError(message, "pip install 'pilotlight[kubernetes]'") from error
    configuration = client.Configuration()
    loading: Any = config
    files = os.environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config")
    has_kubeconfig = any(os.path.exists(each) for each in files.split(os.pathsep))
    try:
        if has_kubeconfig or context or not os.environ.get("KUBERNETES_SERVICE_HOST"):
            loading.load_kube_config(files, context or None, configuration)
        else:
            loading.load_incluster_config(client_configuration=configuration)
    except config.ConfigException as error:
        where = f"context {context}" if context else "no cluster is configured"
        hint = "set KUBECONFIG, or name one of `kubectl config get-contexts` with --context"
        raise NotFound(f"{where}: {error}", hint) from error
    return KubeConnection(client.ApiClient(configuration))


def _read(response: Any, request_line: str) -> KubeResponse:
    body = response.data if isinstance(response.data, bytes) else response.read()
    try:
        document = json.decode(body) if body else {}
    except DecodeError:
        document = {"message": body[:500].decode(errors="replace")}
    if response.status >= 400:
        raise _api_error(response.status, document if isinstance(document, dict) else {}, request_line)
    return KubeResponse(document, tuple(_warnings(response.headers)))


def _warnings(headers: Any) -> Iterator[str]:
    """Yield the texts of Warning headers: `299 - "text"`."""
    for line in headers.getlist("warning"):
        _, _, text = line.partition('"')
        if text:
            yield text.rstrip().removesuffix('"').replace('\\"', '"')


def _api_error(code: int, status: Mapping[str, Json], request_line: str) -> PlatformError:
    error = KubeApiError(code, status, request_line)
    if code == 404:
        missing = NotFound(str(status.get("message") or f"{request_line}: there is no such object"))
        missing.__cause__ = error
        return missing
    if code == 409 and error.reason == "AlreadyExists":
        taken = Conflict(str(error))
        taken.__cause__ = error
        return taken
    return error


def _is_permanent(error: OSError) -> bool:
    """Whether retries are pointless: an unknown host, or an invalid certificate."""
    from urllib3.exceptions import NameResolutionError, SSLError

    return isinstance(error.__cause__, NameResolutionError | SSLError)


def _unreachable(host: str, error: OSError) -> PlatformError:
    reason = str(error).rpartition(": ")[2] or repr(error)
    return PlatformError(
        f"the cluster at {host} does not answer: {reason}", "is KUBECONFIG the right one? --context NAME"
    )
