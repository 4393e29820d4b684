"""Client of one API server: requests with credentials like kubectl, API discovery, objects of any kind.

The official library reads kubeconfig and in-cluster credentials, renews tokens and pools connections. Its models are
not used, since objects may be of any kind, including custom resources.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final
from urllib.parse import quote, urlencode

from msgspec import DecodeError, json

from pilotlight.errors import Conflict, NotFound, PlatformError
from pilotlight.k8s.json_depth import without_deep_values
from pilotlight.wire.environments.install_command import install_command

Json = Any
Document = Mapping[str, Json]

MANAGER: Final = "pilotlight"  # field manager of server-side apply
CONCURRENCY: Final = 8
PAGE: Final = "500"
ANSWER_S: Final = 30.0
# Retry for this time: an API server restarts within it.
RETRY_S: Final = 45.0
PAUSE_S: Final = 0.5
UNAVAILABLE: Final = (429, 502, 503, 504)
SERVER_APPLY: Final = "application/apply-patch+yaml"
MERGE: Final = "application/merge-patch+json"
HINTS: Final = {
    401: "the credentials of the kubeconfig are not accepted: log in again",
    403: "platformctl doctor --target kubernetes lists missing permissions",
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
                method, url, body=None if body is None else _encode(body), headers=headers, timeout=timeout,
                preload_content=timeout is not None, retries=False, redirect=False,
            )  # fmt: skip
        except HTTPError as error:
            raise OSError(str(error)) from error


def _encode(body: Json) -> bytes:
    """Encode as the API server does: after a patch it compares the data of a ControllerRevision byte by byte."""
    text = json.encode(body)
    for character in "<>&\u2028\u2029":
        text = text.replace(character.encode(), f"\\u{ord(character):04x}".encode())
    return text


def connect(context: str = "") -> KubeConnection:
    """Connect by a context of the kubeconfig (default: the current one), or in a pod by its service account."""
    try:
        from kubernetes import client, config
    except ModuleNotFoundError as error:
        message = "the Kubernetes client library is not installed"
        raise PlatformError(message, install_command("kubernetes")) from error
    configuration = client.Configuration()
    loading: Any = config
    files = _kubeconfig()
    has_kubeconfig = any(os.path.exists(each) for each in files.split(os.pathsep))
    try:
        if has_kubeconfig or context or not os.environ.get("KUBERNETES_SERVICE_HOST"):
            loading.load_kube_config(files, context or None, configuration)
        else:
            loading.load_incluster_config(client_configuration=configuration)
    except config.ConfigException as error:
        where = f"context {context}" if context else "no cluster is configured"
        hint = "set KUBECONFIG, or choose one of `kubectl config get-contexts` with --context"
        raise NotFound(f"{where}: {error}", hint) from error
    return KubeConnection(client.ApiClient(configuration))


def current_context() -> str:
    """Return the current context of the kubeconfig; empty inside a pod, which has none."""
    from kubernetes import config

    loading: Any = config
    with suppress(config.ConfigException):
        return str(loading.list_kube_config_contexts(_kubeconfig())[1]["name"])
    return ""


def _kubeconfig() -> str:
    return os.environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config")


def _read(response: Any, request_line: str) -> KubeResponse:
    body = response.data if isinstance(response.data, bytes) else response.read()
    try:
        document = json.decode(body) if body else {}
    except DecodeError:
        document = {"message": body[:500].decode(errors="replace")}
    except RecursionError:
        document = json.decode(without_deep_values(body))
    if response.status >= 400:
        raise _api_error(response.status, document if isinstance(document, dict) else {}, request_line)
    warnings = [line.partition('"')[2] for line in response.headers.getlist("warning")]  # of `299 - "text"`
    return KubeResponse(
        document, tuple(text.rstrip().removesuffix('"').replace('\\"', '"') for text in warnings if text)
    )


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


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """A kind that the cluster serves."""

    api_version: str
    name: str
    plural: str
    namespaced: bool

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0]

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        root = "/apis/" if "/" in self.api_version else "/api/"
        parts = ["namespaces", namespace] if self.namespaced and namespace else []
        parts += [self.plural, *filter(None, (name, subresource))]
        return root + self.api_version + "/" + "/".join(quote(part, safe="") for part in parts)


class Cluster:
    """API discovery is cached for the life of this object."""

    def __init__(self, connection: KubeConnection) -> None:
        self.connection = connection
        self._served: dict[str, dict[str, ResourceKind]] = {}

    @cached_property
    def groups(self) -> Mapping[str, str]:
        """API groups with their preferred version: `apps` → `apps/v1`."""
        response = self.connection.request("GET", "/apis").document
        return {"": "v1", **{each["name"]: each["preferredVersion"]["groupVersion"] for each in response["groups"]}}

    def kind(self, api_version: str, name: str) -> ResourceKind | None:
        """Return the kind; None: not served."""
        served = self._served  # another thread may discover anew
        if api_version not in served:
            served[api_version] = self._kinds(api_version)
        return served[api_version].get(name)

    def _kinds(self, api_version: str) -> dict[str, ResourceKind]:
        root = "/apis/" if "/" in api_version else "/api/"
        try:
            response = self.connection.request("GET", root + api_version).document
        except NotFound:
            return {}
        return {
            each["kind"]: ResourceKind(api_version, each["kind"], each["name"], each["namespaced"])
            for each in response["resources"]
            if "/" not in each["name"]
        }

    def require_kind(self, api_version: str, name: str) -> ResourceKind:
        kind = self.kind(api_version, name)
        if kind is None:
            raise NotFound(f"the cluster has no {name} of {api_version}", "platformctl doctor --target kubernetes")
        return kind

    def get(self, api_version: str, kind: str, namespace: str, name: str) -> dict[str, Json] | None:
        resource = self.kind(api_version, kind)
        if resource is None:
            return None
        try:
            document: dict[str, Json] = self.connection.request("GET", resource.path(namespace, name)).document
        except NotFound:
            return None
        return document

    def list(
        self, api_version: str, kind: str, namespace: str | None = None, selector: str = ""
    ) -> "Sequence[dict[str, Json]]":
        """List a namespace, or all; empty if the kind is not served. Adds apiVersion and kind, which items lack."""
        resource = self.kind(api_version, kind)
        return list(self._items(resource, namespace or "", selector)) if resource else []

    def _items(self, kind: ResourceKind, namespace: str, selector: str) -> Iterator[dict[str, Json]]:
        query = {"limit": PAGE, **({"labelSelector": selector} if selector else {})}
        while True:
            response = self.connection.request("GET", kind.path(namespace), query).document
            for item in response.get("items") or ():
                yield {"apiVersion": kind.api_version, "kind": kind.name, **item}
            continuation = (response.get("metadata") or {}).get("continue")
            if not continuation:
                return
            query["continue"] = continuation

    def list_kinds(
        self, wanted: Sequence[tuple[str, str]], namespace: str | None, selector: str = ""
    ) -> "Sequence[dict[str, Json]]":
        """List several kinds concurrently, each an (apiVersion, kind)."""
        with ThreadPoolExecutor(CONCURRENCY) as pool:
            lists = pool.map(lambda each: self.list(each[0], each[1], namespace, selector), wanted)
            return [item for items in lists for item in items]

    def apply(self, document: Document, *, force: bool = False, dry_run: bool = False) -> KubeResponse:
        """Server-side apply; fields of other managers are a conflict unless `force`."""
        query = {"fieldManager": MANAGER, "fieldValidation": "Strict"}
        query |= {"force": "true"} if force else {}
        query |= {"dryRun": "All"} if dry_run else {}
        return self.connection.request("PATCH", self._path(document), query, document, SERVER_APPLY)

    def create(self, document: Document) -> KubeResponse:
        metadata = document["metadata"]
        kind = self.require_kind(document["apiVersion"], document["kind"])
        query = {"fieldManager": MANAGER}
        return self.connection.request("POST", kind.path(metadata.get("namespace", "")), query, document)

    def merge(self, document: Document, change: Json, subresource: str = "") -> KubeResponse:
        """Send a merge patch for the object that the document names."""
        path = self._path(document, subresource)
        return self.connection.request("PATCH", path, {"fieldManager": MANAGER}, change, MERGE)

    def delete(self, document: Document) -> None:
        """Delete an object; no error if it does not exist."""
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        try:
            self.connection.request("DELETE", self._path(document), None, options)
        except NotFound:
            return

    def is_allowed(self, verb: str, kind: ResourceKind, namespace: str) -> bool:
        """Whether this account has the permission (SelfSubjectAccessReview)."""
        wanted = {"namespace": namespace, "verb": verb, "group": kind.group, "resource": kind.plural}
        api, kind_name = "authorization.k8s.io/v1", "SelfSubjectAccessReview"
        review = {"apiVersion": api, "kind": kind_name, "spec": {"resourceAttributes": wanted}}
        response = self.connection.request("POST", f"/apis/{api}/selfsubjectaccessreviews", None, review).document
        return bool((response.get("status") or {}).get("allowed"))

    def _path(self, document: Document, subresource: str = "") -> str:
        kind = self.require_kind(document["apiVersion"], document["kind"])
        metadata = document["metadata"]
        if kind.namespaced and not metadata.get("namespace"):
            raise PlatformError(f"{kind.name} {metadata['name']} has no namespace")
        return kind.path(metadata.get("namespace", ""), metadata["name"], subresource)
