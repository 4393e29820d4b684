"""Events of the request log: CloudEvents with KServe's types and attributes, redacted and bounded.

Built by the sender's thread, so that a request pays only for the copy of its body.
"""

import base64
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from pilotlight.wire.request_log.redaction import REDACTED, Redactor
from pilotlight.wire.request_log.settings import LogSettings

Json = Any
TYPE: Final = "org.kubeflow.serving.inference."  # as KServe's agent names them
SECRET_HEADERS: Final = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key", "api-key"})
EVENT_STREAM: Final = "text/event-stream"
OCTETS: Final = "application/octet-stream"


class LogEvent(NamedTuple):
    """A request, or with `status` a response, as it was observed."""

    id: str
    at: float  # Unix time
    method: str
    path: str
    headers: Mapping[str, str]  # of the request, by lower-case names
    content_type: str
    body: bytes  # at most max_bytes of it
    size: int  # of the whole body
    status: int | None = None
    revision: str = ""
    caller: str = ""
    encoded: bool = False  # it has a Content-Encoding

    @property
    def kind(self) -> str:
        return "request" if self.status is None else "response"


class EventBuilder:
    """Turns what was observed into CloudEvents of one service."""

    def __init__(self, settings: LogSettings) -> None:
        self._settings = settings
        self._redactor = Redactor(settings.redact_fields, settings.redact_patterns)

    def attributes(self, event: LogEvent, now: float, omitted: str = "") -> dict[str, str]:
        """Return the CloudEvents attributes. Extensions beyond KServe's: revision, caller, http*, body*."""
        settings = self._settings
        metadata = {
            name: [REDACTED if name in SECRET_HEADERS else self._redactor.text(event.headers[name])]
            for name in settings.headers
            if name in event.headers
        }
        found = {
            "specversion": "1.0", "id": event.id, "type": TYPE + event.kind, "time": _utc(event.at),
            "source": f"/namespaces/{settings.namespace}/inferenceservices/{settings.service}",
            "datacontenttype": event.content_type, "recordedtime": _utc(now),
            "inferenceservicename": settings.service, "namespace": settings.namespace, "endpoint": "default",
            "component": settings.component, "metadata": json.dumps(metadata),
            "annotations": json.dumps(dict(settings.annotations)) if settings.annotations else "",
            "revision": event.revision, "caller": event.caller, "httpmethod": event.method, "httppath": event.path,
            "httpstatus": "" if event.status is None else str(event.status), "bodybytes": str(event.size),
            "bodyomitted": omitted,
        }  # fmt: skip
        return {name: value for name, value in found.items() if value}

    def payload(self, event: LogEvent) -> tuple[bytes, str]:
        """Return the redacted body, and why it is not the whole one; "": it is."""
        if not self._settings.payload:
            return b"", "metadata"
        cut = "truncated" if event.size > len(event.body) else ""
        if not self._redactor.rules or not event.body:
            return event.body, cut
        if event.encoded:
            return b"", "encoded"
        try:
            text = event.body.decode()
        except UnicodeDecodeError:
            return b"", "truncated" if cut else "binary"
        if event.status is not None and event.content_type.startswith(EVENT_STREAM):  # of a request it is a pretext
            return self._redactor.stream(text, cut=bool(cut)).encode(errors="replace"), cut
        if cut:  # rules cannot be applied to a part of a document, and a secret may end at the cut
            return b"", cut
        return self._redactor.body(text).encode(errors="replace"), ""  # JSON may have half a surrogate pair

    def line(self, event: LogEvent, now: float) -> bytes:
        """Return the event in CloudEvents' JSON format, as one line."""
        body, omitted = self.payload(event)
        document = {**self.attributes(event, now, omitted), **(_data(body, event) if body else {})}
        return json.dumps(document, separators=(",", ":")).encode() + b"\n"

    def binary(self, event: LogEvent, now: float) -> tuple[dict[str, str], bytes]:
        """Return headers and body of CloudEvents' binary HTTP mode, which KServe's agent sends."""
        body, omitted = self.payload(event)
        attributes = self.attributes(event, now, omitted)
        content_type = attributes.pop("datacontenttype", OCTETS)
        headers = {f"ce-{name}": _header(value) for name, value in attributes.items()}
        valid = content_type.isascii() and content_type.isprintable()
        return {"Content-Type": content_type if valid else OCTETS, **headers}, body


def _data(body: bytes, event: LogEvent) -> dict[str, Json]:
    if ("json" in event.content_type or not event.content_type) and not event.encoded:
        try:
            return {"data": json.loads(body)}
        except (ValueError, RecursionError):
            pass
    try:
        return {"data": body.decode()}
    except UnicodeDecodeError:
        return {"data_base64": base64.b64encode(body).decode()}


def _header(value: str) -> str:
    """Percent-encode what a header cannot carry, as CloudEvents' HTTP binding does."""
    data = value.encode(errors="replace")
    return "".join(chr(byte) if 0x21 <= byte <= 0x7E and byte not in b'%"' else f"%{byte:02X}" for byte in data)


def _utc(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
