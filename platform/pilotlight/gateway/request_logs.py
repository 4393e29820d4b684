"""Request logs and audit records of the gateway, for routes whose services want them.

A logged request costs a copy of its first bytes; redaction and delivery happen in the log's thread. An audit record is
written before the first byte of the response, so that a client that has seen one is on record even if this process is
killed.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pilotlight import contract
from pilotlight.gateway.proxy.interfaces import ObservedRequest
from pilotlight.gateway.proxy.response_observers import ResponseObserver
from pilotlight.gateway.routing_table import Backend, Route, RouteKey, Table
from pilotlight.wire.prometheus_text import Family
from pilotlight.wire.request_log.audit_log import AuditLog
from pilotlight.wire.request_log.events import LogEvent

if TYPE_CHECKING:
    from pilotlight.wire.request_log.sender import RequestLog

FLUSH_S: Final = 5.0  # at the end of the process, or of a log's settings
SHOWN: Final = 1024  # characters of what the client chooses: paths, ids


class RequestLogs:
    """Logs of all routes. `on_error` gets what users must know, also from threads; `folder` is of the audit log."""

    def __init__(self, folder: Path, on_error: Callable[[str], None], wall: Callable[[], float] = time.time) -> None:
        self._logs: dict[RouteKey, RequestLog] = {}
        self._audit, self._on_error, self._wall = AuditLog(folder), on_error, wall
        self._written = self._failed = 0  # audit records

    def update(self, table: Table) -> None:
        """Open and close logs by the settings of a new table; counts of an unchanged log continue."""
        wanted = {(each.namespace, each.name): each.request_log for each in table.routes if each.request_log}
        for key in [key for key, log in self._logs.items() if wanted.get(key) != log.settings]:
            self._logs.pop(key).close(FLUSH_S, wait=False)
        for key in wanted.keys() - self._logs.keys():
            from pilotlight.wire.request_log.sender import RequestLog  # and an HTTP client: 20 ms of a restart

            self._logs[key] = RequestLog(wanted[key], self._on_error)

    def close(self) -> None:
        until = time.monotonic() + FLUSH_S
        for log in self._logs.values():
            log.close(FLUSH_S, wait=False)
        for log in self._logs.values():
            log.close(max(0.0, until - time.monotonic()))

    def observe(self, request: ObservedRequest) -> ResponseObserver | None:
        """Return the observer of a request; None: neither is wanted, or the sample leaves it out."""
        prepared = request.prepared
        if prepared.route is None or prepared.component:
            return None
        route = prepared.route.route
        log = self._logs.get((route.namespace, route.name))
        if log is not None and not log.samples():
            log = None
        if log is None and not route.audit:
            return None
        return LoggedRequest(request, route, log, self.record if route.audit else None, self._wall())

    def record(
        self, route: Route, backend: Backend | None, caller: str, request_id: str, call: str, status: int
    ) -> None:
        """Append an audit record; a request is served without one that cannot be written, which is counted."""
        fields = {
            "event": "request", "caller": caller[:SHOWN], "namespace": route.namespace, "service": route.name,
            "revision": backend.revision if backend else "", "digest": backend.digest if backend else "",
            "request_id": request_id[:SHOWN], "call": call[:SHOWN], "status": status,
        }  # fmt: skip
        try:
            self._audit.append(fields)
            self._written += 1
        except OSError as error:
            self._failed += 1
            self._on_error(f"audit log: a record was not written: {error}")

    def families(self) -> Iterable[Family]:
        events = Family(contract.METRIC_LOG_EVENTS, "counter", "Events of request logs, by result.")
        for (namespace, name), log in sorted(self._logs.items()):
            labels = {contract.LABEL_NAMESPACE: namespace, contract.LABEL_SERVICE: name}
            for result in ("sent", "dropped", "failed"):
                events.add(getattr(log.counts, result), **labels, result=result)
        audit = Family(contract.METRIC_AUDIT_RECORDS, "counter", "Records of the audit log, by result.")
        audit.add(self._written, result="written")
        audit.add(self._failed, result="failed")
        return events, audit


class LoggedRequest:
    """Observer of one request: captures the first bytes of both bodies, and records its result."""

    def __init__(
        self, request: ObservedRequest, route: Route, log: "RequestLog | None", record: Callable[..., None] | None,
        wall: float,
    ) -> None:  # fmt: skip
        self._request, self._route, self._log, self._record = request, route, log, record
        self._began, self._began_at = request.now(), wall
        self._limit = log.settings.max_bytes if log is not None and log.settings.payload else 0
        self._sent, self._received = bytearray(), bytearray()  # of the request, of the response
        self._sent_size = self._received_size = 0
        self._status = 0  # of the response's head
        self._headers: Mapping[str, str] = {}

    @property
    def _path(self) -> str:
        return self._request.prepared.head.target.partition("?")[0]  # a query may contain credentials

    def on_request_body(self, piece: bytes) -> None:
        self._sent_size += len(piece)
        self._sent += piece[: max(0, self._limit - len(self._sent))]

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        self._status, self._headers = status, headers
        self._append(status)

    def on_body(self, piece: bytes) -> bytes:
        self._received_size += len(piece)
        self._received += piece[: max(0, self._limit - len(self._received))]
        return piece

    def on_body_end(self) -> bytes:
        return b""

    def on_end(self, status: int, now: float) -> None:
        if not self._status:
            self._append(status)
        if self._log is None:
            return
        at = self._began_at + now - self._began
        headers = self._request.prepared.head.headers
        if self._log.settings.logs_requests:
            self._log.offer(self._event(self._began_at, headers, self._sent, self._sent_size, None))
        if self._log.settings.logs_responses:
            response = self._event(at, self._headers, self._received, self._received_size, status)
            self._log.offer(response)

    def _append(self, status: int) -> None:
        request = self._request
        if self._record is not None:
            backend = request.backend.config if request.backend is not None else None
            call = f"{request.method} {self._path}"
            self._record(self._route, backend, request.caller, request.request_id, call, status)

    def _event(self, at: float, headers: Mapping[str, str], body: bytearray, size: int, status: int | None) -> LogEvent:
        request = self._request
        return LogEvent(
            request.request_id, at, request.method, self._path[:SHOWN], request.prepared.head.headers,
            headers.get("content-type", ""), bytes(body), size, status,
            request.backend.config.revision if request.backend is not None else "", request.caller,
            headers.get("content-encoding", "identity") != "identity",
        )  # fmt: skip
