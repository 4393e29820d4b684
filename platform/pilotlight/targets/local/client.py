"""Target of the embedded platform: client of the control API.

Uses http.client only: the API is on loopback, and importing a client library would delay every command.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote, urlencode

from msgspec import DecodeError, Struct, ValidationError, json

from pilotlight import __version__
from pilotlight.contract import HEADER_USER, HEADER_VERSION
from pilotlight.errors import (
    Conflict,
    InternalError,
    NotFound,
    OnOtherTarget,
    PlatformError,
    RolledBack,
    TimedOut,
    UsageError,
)
from pilotlight.k8s.manifest import Manifest
from pilotlight.targets.local.capabilities import capabilities_of
from pilotlight.targets.local.control_process_launcher import Address
from pilotlight.targets.target import (
    CanaryRecord,
    Event,
    Finding,
    Key,
    LogLine,
    Release,
    Sample,
    SampleBody,
    ServiceRoute,
    ServiceStatus,
    Share,
    UsageRow,
    with_headings,
)
from pilotlight.wire.machine import user_name

if TYPE_CHECKING:
    from pilotlight.targets.local.history.points import ServiceHistory

Json = Any
T = TypeVar("T")

REQUEST_TIMEOUT_S: Final = 30.0
CHECKS_S: Final = 300.0  # for programs of daemons that do not answer
POLL_S: Final = 0.05
STREAM_TIMEOUT_S: Final = 60.0  # followed streams send a line at least every 10 s
BY_EXIT_CODE: Final[Mapping[int, type[PlatformError]]] = {
    kind.exit_code: kind for kind in (PlatformError, UsageError, NotFound, TimedOut, RolledBack, InternalError)
}


class ErrorBody(Struct, frozen=True):
    """Body of an error response; `exit_code` is the exit code of a command that fails with it."""

    error: str
    hint: str = ""
    exit_code: int = 1


class Ticket(Struct, frozen=True):
    """One-time login of a browser to the console."""

    ticket: str
    path: str
    seconds: int


class LocalTarget:
    """Implements `targets.target.Target`; one connection per request.

    Verbs on a service raise OnOtherTarget if another target of the platform runs it.
    """

    poll_s = POLL_S
    embedded = True

    def __init__(self, address: Address, name: str = "local", options: Mapping[str, str] | None = None) -> None:
        """`name` is local, docker or slurm: the control process runs the services of all three."""
        self.address, self.name = address, name
        self._options = options or {}

    def capabilities(self) -> Mapping[str, Json]:
        from pilotlight.catalogue.engine_programs import ENV_ENGINE_PATH
        from pilotlight.targets.local.installed_engines import installed_engines

        values = capabilities_of(self.name, self._options)
        if self.name != "local":
            return values
        return {**values, "engines": installed_engines({ENV_ENGINE_PATH: self.address.engine_path, "PATH": ""})}

    def catalogue(self, namespaces: Sequence[str]) -> tuple[Sequence[tuple[str, Mapping[str, Json]]], Sequence[str]]:
        return (), ()

    def open_route(self, status: ServiceStatus) -> AbstractContextManager[ServiceRoute]:
        return nullcontext(ServiceRoute(status.url))

    def probe(self, status: ServiceStatus) -> str:
        """Return no problem: the control process reports Ready only after the gateway has applied the routes."""
        return ""

    def record_status(self, status: ServiceStatus) -> None:
        """Do nothing: the control process records status itself."""

    def live(self, key: Key) -> list[Manifest]:
        try:
            self.status(key)
            return [Manifest(document) for document in self._get(f"{path(key)}/live", list[dict[str, Json]])]
        except NotFound:
            return []

    def apply(self, release: Release, *, reset: bool = False, dry_run: bool = False) -> ServiceStatus:
        where = path((release.namespace, release.name))
        parameters = query(reset=reset, dry_run=dry_run)
        return self._request("PUT", where + parameters, ServiceStatus, release)

    def status(self, key: Key) -> ServiceStatus:
        status = self._get(path(key), ServiceStatus)
        if status.target != self.name:
            raise OnOtherTarget(f"{'/'.join(key)} runs on {status.target}", f"add --target {status.target}")
        return status

    def list(self, namespace: str | None) -> Sequence[ServiceStatus]:
        return tuple(status for status in self.list_all(namespace) if status.target == self.name)

    def list_all(self, namespace: str | None) -> Sequence[ServiceStatus]:
        """Return the services of all targets that the control process serves."""
        return self._get("/api/v1/services" + query(namespace=namespace), tuple[ServiceStatus, ...])

    def releases(self, key: Key) -> Sequence[Release]:
        self.status(key)
        return self._get(f"{path(key)}/releases", tuple[Release, ...])

    def scale(self, key: Key, bounds: Mapping[str, int] | None) -> ServiceStatus:
        self.status(key)
        return self._request("PUT", f"{path(key)}/scale", ServiceStatus, bounds)

    def traffic(self, key: Key, shares: Sequence[Share] | None) -> ServiceStatus:
        self.status(key)
        return self._request("PUT", f"{path(key)}/traffic", ServiceStatus, shares)

    def set_secret(self, key: Key, values: Mapping[str, str]) -> None:
        """Set the values of a service's own Secret, before it is applied; the control process keeps them in memory."""
        self._request("PUT", f"{path(key)}/secret", dict[str, Json], values)

    def findings(self) -> Sequence[Finding]:
        """Return the checks of docker or slurm, made by the control process: its environment counts."""
        where, options = f"/api/v1/targets/{self.name}/checks", json.encode(self._options)
        with self._response("POST", where, options, CHECKS_S, False) as response:
            return _decoded(response.read(), tuple[Finding, ...])

    def logs(self, key: Key, *, follow: bool, previous: bool, replica: str, tail: int) -> Iterator[str]:
        self.status(key)
        parameters = query(follow=follow, previous=previous, replica=replica, tail=tail)
        return with_headings(self._lines(f"{path(key)}/logs{parameters}", LogLine))

    def events(self, key: Key | None, *, follow: bool) -> Iterator[Event]:
        where = f"{path(key)}/events" if key else "/api/v1/events"
        return self._lines(where + query(follow=follow), Event)

    def delete(self, key: Key) -> None:
        self.status(key)
        self._request("DELETE", path(key), dict[str, Json])

    def canaries(self, namespace: str | None) -> Sequence[CanaryRecord]:
        return self._get("/api/v1/canaries" + query(namespace=namespace), tuple[CanaryRecord, ...])

    def canary(self, key: Key) -> CanaryRecord | None:
        records = self._get(f"{path(key)}/canary", list[CanaryRecord])
        return records[0] if records else None

    def save_canary(self, key: Key, state: str, version: str) -> CanaryRecord:
        return self._request("PUT", f"{path(key)}/canary", CanaryRecord, {"state": state, "version": version})

    def query(self, promql: str) -> Sequence[Sample]:
        rows = self._request("POST", "/api/v1/query", tuple[SampleBody, ...], {"query": promql})
        return [Sample(row.labels, float(row.value), row.at) for row in rows]

    def usage(self, since: str) -> Sequence[UsageRow]:
        """Return the tokens used from a day `YYYY-MM-DD` on."""
        return self._get(f"/api/v1/usage{query(since=since)}", tuple[UsageRow, ...])

    def history(self, key: Key, seconds: int) -> "ServiceHistory":
        """Return the recorded figures of the last seconds, at the finest resolution that covers them."""
        from pilotlight.targets.local.history.points import ServiceHistory  # of two verbs

        return self._get(f"{path(key)}/history{query(seconds=seconds)}", ServiceHistory)

    def console(self, *, read_only: bool = False) -> Ticket:
        return self._request("POST", f"/api/v1/console/tickets{query(read_only=read_only)}", Ticket)

    def shutdown(self, drain_s: float) -> None:
        """Stop the control process, of any version: an upgrade stops an older one."""
        self._request("POST", "/api/v1/shutdown", dict[str, Json], {"drain_s": drain_s}, any_version=True)

    def _get(self, where: str, kind: type[T]) -> T:
        return self._request("GET", where, kind)

    def _request(self, method: str, where: str, kind: type[T], body: Json = None, *, any_version: bool = False) -> T:
        sent = json.encode(body) if method in ("PUT", "POST") else None
        with self._response(method, where, sent, REQUEST_TIMEOUT_S, any_version) as response:
            return _decoded(response.read(), kind)

    def _lines(self, where: str, kind: type[T]) -> Iterator[T]:
        with self._response("GET", where, None, STREAM_TIMEOUT_S, False) as response:
            while line := response.readline():
                if line.strip():
                    yield _decoded(line, kind)

    @contextmanager
    def _response(
        self, method: str, where: str, body: bytes | None, timeout: float, any_version: bool
    ) -> Iterator[HTTPResponse]:
        """Send one request; raise the error of a response that is no success."""
        connection = HTTPConnection(self.address.host, self.address.port, timeout=timeout)
        headers = {"Authorization": f"Bearer {self.address.token}", HEADER_VERSION: __version__}
        headers[HEADER_USER] = quote(user_name())
        try:
            connection.request(method, where, body, headers)
            response = connection.getresponse()
            version = response.getheader(HEADER_VERSION, "")
            if not any_version and version not in ("", __version__):
                message = f"the control process has version {version}, platformctl has {__version__}"
                raise PlatformError(message, "run platformctl down && platformctl up")
            if response.status >= 400:
                raise _error(response.status, response.read(), self.name)
            yield response
        except (OSError, HTTPException) as error:
            raise PlatformError(f"the control process does not answer: {error!r}", "see platformctl doctor") from error
        finally:
            connection.close()


def path(key: Key) -> str:
    namespace, name = (quote(part, safe="") for part in key)
    return f"/api/v1/namespaces/{namespace}/services/{name}"


def query(**parameters: bool | int | str | None) -> str:
    """Return a query string without parameters that are False, empty or None."""
    omitted = (None, False, "")  # by identity: 0 is a value
    present = {name: value for name, value in parameters.items() if not any(value is each for each in omitted)}
    present = {name: "true" if value is True else value for name, value in present.items()}
    return f"?{urlencode(present)}" if present else ""


def _error(status: int, body: bytes, target: str) -> PlatformError:
    try:
        error = json.decode(body, type=ErrorBody)
    except (DecodeError, ValidationError):
        return InternalError(f"the control process returned {status}: {body[:200]!r}")
    hint = error.hint.replace("platformctl list", f"platformctl list --target {target}")
    if status == 409:
        return Conflict(error.error, hint)
    return BY_EXIT_CODE.get(error.exit_code, PlatformError)(error.error, hint)


def _decoded(body: bytes, kind: type[T]) -> T:
    try:
        return json.decode(body, type=kind)
    except (DecodeError, ValidationError) as error:
        raise InternalError(f"the control process returned an unexpected response: {error}") from error
