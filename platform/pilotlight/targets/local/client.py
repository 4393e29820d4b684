"""The embedded platform as a target: the control API asked over HTTP. What `platformctl` knows of the local machine.

Standard library only on the wire: it is loopback, and a verb must not wait for a client library to be imported.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

from msgspec import DecodeError, Struct, ValidationError, json

from pilotlight import __version__
from pilotlight.contract import HEADER_VERSION
from pilotlight.errors import (
    Conflict,
    InternalError,
    NotFound,
    PlatformError,
    RolledBack,
    TimedOut,
    UsageError,
)
from pilotlight.manifests import Manifest
from pilotlight.targets.local.launching import Address
from pilotlight.targets.target import Event, KeptCanary, Key, Release, Sample, ServiceStatus, Share, Way

Json = Any
T = TypeVar("T")

ANSWER_S: Final = 30.0
POLL_S: Final = 0.05
SILENCE_S: Final = 60.0  # a stream that is followed says something every ten seconds
BY_EXIT_CODE: Final[Mapping[int, type[PlatformError]]] = {
    kind.exit_code: kind for kind in (PlatformError, UsageError, NotFound, TimedOut, RolledBack, InternalError)
}


class Refusal(Struct, frozen=True):
    error: str
    hint: str = ""
    exit_code: int = 1


class Ticket(Struct, frozen=True):
    """What logs a browser in to the console once."""

    ticket: str
    path: str
    seconds: int


class LogLine(Struct, frozen=True):
    replica: str
    line: str


class Told(Struct, frozen=True):
    """A sample, whose value is a text on the wire: JSON has no word for NaN."""

    labels: dict[str, str]
    value: str
    at: float


class LocalTarget:
    """Implements `targets.target.Target`. Every call is a connection of its own."""

    name = "local"
    poll_s = POLL_S

    def __init__(self, address: Address) -> None:
        self.address = address

    def offers(self) -> Mapping[str, Json]:
        return {}

    def catalogue(self, namespaces: Sequence[str]) -> tuple[Sequence[tuple[str, Mapping[str, Json]]], Sequence[str]]:
        return (), ()

    def way(self, status: ServiceStatus) -> AbstractContextManager[Way]:
        return nullcontext(Way(status.url))

    def probe(self, status: ServiceStatus) -> str:
        """Asked by the control process itself: a service is ready once the gateway has confirmed its shares."""
        return ""

    def note(self, status: ServiceStatus) -> None:
        """The control process knows it already."""

    def live(self, key: Key) -> list[Manifest]:
        try:
            return [Manifest(document) for document in self._get(f"{path(key)}/live", list[dict[str, Json]])]
        except NotFound:
            return []

    def apply(self, release: Release, *, reset: bool = False, dry_run: bool = False) -> ServiceStatus:
        where = path((release.namespace, release.name))
        asked = query(reset=reset, dry_run=dry_run)
        return self._ask("PUT", where + asked, ServiceStatus, release)

    def status(self, key: Key) -> ServiceStatus:
        return self._get(path(key), ServiceStatus)

    def list(self, namespace: str | None) -> Sequence[ServiceStatus]:
        return self._get("/api/v1/services" + query(namespace=namespace), tuple[ServiceStatus, ...])

    def releases(self, key: Key) -> Sequence[Release]:
        return self._get(f"{path(key)}/releases", tuple[Release, ...])

    def scale(self, key: Key, bounds: Mapping[str, int] | None) -> ServiceStatus:
        return self._ask("PUT", f"{path(key)}/scale", ServiceStatus, bounds)

    def traffic(self, key: Key, shares: Sequence[Share] | None) -> ServiceStatus:
        return self._ask("PUT", f"{path(key)}/traffic", ServiceStatus, shares)

    def logs(self, key: Key, *, follow: bool, previous: bool, replica: str, tail: int) -> Iterator[str]:
        """As `tail` shows several files: a heading where the lines of another replica begin."""
        asked = query(follow=follow, previous=previous, replica=replica, tail=tail)
        last = ""
        for found in self._lines(f"{path(key)}/logs{asked}", LogLine):
            if last and found.replica != last:
                yield f"==> {found.replica} <=="
            last = found.replica
            yield found.line

    def events(self, key: Key | None, *, follow: bool) -> Iterator[Event]:
        where = f"{path(key)}/events" if key else "/api/v1/events"
        return self._lines(where + query(follow=follow), Event)

    def delete(self, key: Key) -> None:
        self._ask("DELETE", path(key), dict[str, Json])

    def canaries(self, namespace: str | None) -> Sequence[KeptCanary]:
        return self._get("/api/v1/canaries" + query(namespace=namespace), tuple[KeptCanary, ...])

    def canary(self, key: Key) -> KeptCanary | None:
        found = self._get(f"{path(key)}/canary", list[KeptCanary])
        return found[0] if found else None

    def keep_canary(self, key: Key, state: str, version: str) -> KeptCanary:
        return self._ask("PUT", f"{path(key)}/canary", KeptCanary, {"state": state, "version": version})

    def query(self, promql: str) -> Sequence[Sample]:
        found = self._ask("POST", "/api/v1/query", tuple[Told, ...], {"query": promql})
        return [Sample(each.labels, float(each.value), each.at) for each in found]

    def console(self) -> Ticket:
        return self._ask("POST", "/api/v1/console/tickets", Ticket)

    def shutdown(self, drain_s: float) -> None:
        """Asked of any version: it is how an older control process is replaced."""
        self._ask("POST", "/api/v1/shutdown", dict[str, Json], {"drain_s": drain_s}, any_version=True)

    def _get(self, where: str, kind: type[T]) -> T:
        return self._ask("GET", where, kind)

    def _ask(self, method: str, where: str, kind: type[T], body: Json = None, *, any_version: bool = False) -> T:
        sent = json.encode(body) if method in ("PUT", "POST") else None
        with self._answer(method, where, sent, ANSWER_S, any_version) as answer:
            return _decoded(answer.read(), kind)

    def _lines(self, where: str, kind: type[T]) -> Iterator[T]:
        with self._answer("GET", where, None, SILENCE_S, False) as answer:
            while line := answer.readline():
                if line.strip():
                    yield _decoded(line, kind)

    @contextmanager
    def _answer(
        self, method: str, where: str, body: bytes | None, timeout: float, any_version: bool
    ) -> Iterator[HTTPResponse]:
        """The reply to one request; whatever is not a success is raised as the error that it tells of."""
        connection = HTTPConnection(self.address.host, self.address.port, timeout=timeout)
        headers = {"Authorization": f"Bearer {self.address.token}", HEADER_VERSION: __version__}
        try:
            connection.request(method, where, body, headers)
            answer = connection.getresponse()
            if not any_version:
                _check_version(answer.getheader(HEADER_VERSION, ""))
            if answer.status >= 400:
                raise _error(answer.status, answer.read())
            yield answer
        except (OSError, HTTPException) as error:
            raise PlatformError(f"the control process does not answer: {error!r}", "see platformctl doctor") from error
        finally:
            connection.close()


def path(key: Key) -> str:
    namespace, name = (quote(part, safe="") for part in key)
    return f"/api/v1/namespaces/{namespace}/services/{name}"


def query(**asked: bool | int | str | None) -> str:
    """Without what is False, empty or None."""
    nothing = (None, False, "")
    given = {name: value for name, value in asked.items() if not any(value is each for each in nothing)}
    given = {name: "true" if value is True else value for name, value in given.items()}
    return f"?{urlencode(given)}" if given else ""


def _check_version(theirs: str) -> None:
    if theirs and theirs != __version__:
        message = f"the control process is of version {theirs}, platformctl of {__version__}"
        raise PlatformError(message, "run platformctl down && platformctl up")


def _error(status: int, body: bytes) -> PlatformError:
    try:
        told = json.decode(body, type=Refusal)
    except (DecodeError, ValidationError):
        return InternalError(f"the control process answered {status}: {body[:200]!r}")
    if status == 409:
        return Conflict(told.error, told.hint)
    return BY_EXIT_CODE.get(told.exit_code, PlatformError)(told.error, told.hint)


def _decoded(body: bytes, kind: type[T]) -> T:
    try:
        return json.decode(body, type=kind)
    except (DecodeError, ValidationError) as error:
        raise InternalError(f"the control process answered what was not asked for: {error}") from error
