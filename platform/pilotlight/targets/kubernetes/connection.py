"""The wire to one cluster: credentials as kubectl finds them, plain JSON, and errors that say what to do.

The official client library reads kubeconfig and in-cluster credentials, renews tokens and holds the connections. Its
models stay unused: what is sent and read here is any object, also of kinds that no library knows.
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
# An API server that restarts is back within this time; nothing is given up before.
PATIENCE_S: Final = 45.0
PAUSE_S: Final = 0.5
UNAVAILABLE: Final = (429, 502, 503, 504)
SERVER_APPLY: Final = "application/apply-patch+yaml"
MERGE: Final = "application/merge-patch+json"


class Refused(PlatformError):
    """What the API server answered to a request that it did not carry out; `status` is its Status object."""

    def __init__(self, code: int, status: Mapping[str, Json], asked: str) -> None:
        self.code = code
        self.status = status
        self.reason = str(status.get("reason") or "")
        super().__init__(f"{asked}: {status.get('message') or f'answered {code}'}", _hint(code))


@dataclass(frozen=True, slots=True)
class Answer:
    document: Json
    warnings: tuple[str, ...] = ()  # what the API server remarks on an object that it took


class Connection:
    """Thread-safe, as the pool of connections behind it is."""

    def __init__(
        self, api: Any, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.api = api
        self._clock, self._sleep = clock, sleep

    def ask(
        self, method: str, path: str, query: Mapping[str, str] | None = None, body: Json = None,
        content_type: str = "application/json",
    ) -> Answer:  # fmt: skip
        """Raises Refused, or NotFound and Conflict where that is what it means. Waits while the server restarts."""
        until = self._clock() + PATIENCE_S
        while True:
            try:
                answer = self._send(method, path, query, body, content_type)
            except OSError as error:
                if self._clock() >= until or _hopeless(error):
                    raise _unreachable(self.api.configuration.host, error) from error
            else:
                if answer.status not in UNAVAILABLE or self._clock() >= until:
                    return _read(answer, f"{method} {path}")
            self._sleep(PAUSE_S)

    def text(self, path: str, query: Mapping[str, str] | None = None) -> list[str]:
        """Lines of what is no JSON, such as the end of a log, within the time that an answer may take."""
        try:
            answer = self._send("GET", path, query, None, "application/json")
        except OSError as error:
            raise _unreachable(self.api.configuration.host, error) from error
        if answer.status >= 400:
            _read(answer, f"GET {path}")
        return str(answer.data.decode(errors="replace")).splitlines()

    def lines(self, path: str, query: Mapping[str, str] | None = None) -> Iterator[bytes]:
        """A stream of lines, such as a log or a watch; it ends when the server ends it. OSError: it was cut."""
        from urllib3.exceptions import HTTPError

        answer = self._send("GET", path, query, None, "application/json", timeout=None)
        try:
            if answer.status >= 400:
                _read(answer, f"GET {path}")
            rest = b""
            for piece in answer.stream(65536, decode_content=True):
                *whole, rest = (rest + piece).split(b"\n")
                yield from whole
            if rest:
                yield rest
        except HTTPError as error:
            raise OSError(str(error)) from error
        finally:
            answer.close()

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


def connect(context: str = "") -> Connection:
    """With the kubeconfig's current context, or the one that is named; inside a pod with the pod's own account."""
    try:
        from kubernetes import client, config
    except ModuleNotFoundError as error:
        message = "the Kubernetes client library is not installed"
        raise PlatformError(message, "pip install 'pilotlight[kubernetes]'") from error
    made = client.Configuration()
    loading: Any = config
    files = os.environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config")
    there = any(os.path.exists(each) for each in files.split(os.pathsep))
    try:
        if there or context or not os.environ.get("KUBERNETES_SERVICE_HOST"):
            loading.load_kube_config(files, context or None, made)
        else:
            loading.load_incluster_config(client_configuration=made)
    except config.ConfigException as error:
        where = f"context {context}" if context else "no cluster is configured"
        hint = "set KUBECONFIG, or name one of `kubectl config get-contexts` with --context"
        raise NotFound(f"{where}: {error}", hint) from error
    return Connection(client.ApiClient(made))


def _read(answer: Any, asked: str) -> Answer:
    body = answer.data if isinstance(answer.data, bytes) else answer.read()
    try:
        document = json.decode(body) if body else {}
    except DecodeError:
        document = {"message": body[:500].decode(errors="replace")}
    if answer.status >= 400:
        raise _refusal(answer.status, document if isinstance(document, dict) else {}, asked)
    return Answer(document, tuple(_remarks(answer.headers)))


def _remarks(headers: Any) -> Iterator[str]:
    """`299 - "text"`, as HTTP spells a warning."""
    for line in headers.getlist("warning"):
        _, _, text = line.partition('"')
        if text:
            yield text.rstrip().removesuffix('"').replace('\\"', '"')


def _refusal(code: int, status: Mapping[str, Json], asked: str) -> PlatformError:
    refused = Refused(code, status, asked)
    if code == 404:
        missing = NotFound(str(status.get("message") or f"{asked}: there is no such object"))
        missing.__cause__ = refused
        return missing
    if code == 409 and refused.reason == "AlreadyExists":
        taken = Conflict(str(refused))
        taken.__cause__ = refused
        return taken
    return refused


def _hint(code: int) -> str:
    hints = {
        401: "the credentials of the kubeconfig are not accepted: log in again",
        403: "platformctl doctor --target kubernetes lists which rights are missing",
    }
    return hints.get(code, "")


def _hopeless(error: OSError) -> bool:
    """A name that nobody knows and a certificate that nobody vouches for do not become better by waiting."""
    from urllib3.exceptions import NameResolutionError, SSLError

    return isinstance(error.__cause__, NameResolutionError | SSLError)


def _unreachable(host: str, error: OSError) -> PlatformError:
    told = str(error).rpartition(": ")[2] or repr(error)
    return PlatformError(
        f"the cluster at {host} does not answer: {told}", "is KUBECONFIG the right one? --context NAME"
    )
