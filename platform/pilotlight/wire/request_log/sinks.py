"""Sinks of the request log: a file, an HTTP server, an S3 bucket. They block, in the sender's thread only."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol
from urllib.parse import quote, urlsplit

from pilotlight.wire.http_client import FAILURES, HttpClient
from pilotlight.wire.request_log.events import EventBuilder, LogEvent
from pilotlight.wire.request_log.settings import LogSettings

TIMEOUT_S: Final = 5.0
FILE_BYTES: Final = 64 << 20
FILES: Final = 4  # the file itself, .1, .2 and .3
RETRIED: Final = frozenset({408, 425, 429})


class Undelivered(Exception):
    """A sink did not accept events: the first `sent` are delivered, the next `refused` never will be."""

    def __init__(self, reason: str, sent: int = 0, refused: int = 0) -> None:
        super().__init__(reason)
        self.sent, self.refused = sent, refused


class Sink(Protocol):
    def send(self, events: Sequence[LogEvent]) -> None:
        """Deliver the events in their order. Raise Undelivered."""

    def close(self) -> None: ...


class FileSink:
    """JSON lines in a file of mode 0600, rotated by size. Several processes may append to one file."""

    def __init__(self, path: str, builder: EventBuilder, limit: int = FILE_BYTES) -> None:
        self._path, self._builder, self._limit = path, builder, limit

    def send(self, events: Sequence[LogEvent]) -> None:
        now = time.time()
        data = b"".join(self._builder.line(event, now) for event in events)
        try:
            os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
            if self._size() + len(data) > self._limit:
                self._rotate()
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(self._path, flags, 0o600)
            try:
                written = os.write(descriptor, data)
                if written < len(data):
                    _drop_last(descriptor, written - data[:written].rfind(b"\n") - 1)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise Undelivered(f"{self._path}: {error.strerror}") from error
        if written < len(data):
            raise Undelivered(f"{self._path}: the disk is full", data[:written].count(b"\n"))

    def _size(self) -> int:
        try:
            return os.stat(self._path).st_size
        except FileNotFoundError:
            return 0

    def _rotate(self) -> None:
        for number in range(FILES - 1, 0, -1):
            older = self._path if number == 1 else f"{self._path}.{number - 1}"
            with suppress(FileNotFoundError):
                os.replace(older, f"{self._path}.{number}")

    def close(self) -> None:
        """Nothing stays open between batches."""


def _drop_last(descriptor: int, size: int) -> None:
    """Drop an incomplete line that was just appended, unless another process has appended behind it."""
    end = os.lseek(descriptor, 0, os.SEEK_CUR)
    if end == os.fstat(descriptor).st_size:
        os.ftruncate(descriptor, end - size)


class HttpSink:
    """A POST for each event on one kept connection, in CloudEvents' binary mode, as KServe's agent sends them."""

    def __init__(self, url: str, builder: EventBuilder) -> None:
        parts = urlsplit(url)
        self._url, self._builder = url, builder
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        origin = f"{parts.scheme}://{parts.netloc}"
        self._client = HttpClient(origin, TIMEOUT_S, max_bytes=1 << 16, total_s=2 * TIMEOUT_S)

    def send(self, events: Sequence[LogEvent]) -> None:
        for sent, event in enumerate(events):
            headers, body = self._builder.binary(event, time.time())
            try:
                reply = self._client.request("POST", self._target, body, {**headers, "Content-Length": str(len(body))})
            except FAILURES as error:
                raise Undelivered(f"{self._url}: {error or type(error).__name__}", sent) from error
            if not 200 <= reply.status < 300:
                refused = 0 if reply.status >= 500 or reply.status in RETRIED else 1
                raise Undelivered(f"{self._url}: status {reply.status}", sent, refused)

    def close(self) -> None:
        self._client.__exit__()


class S3Sink:
    """An object of JSON lines for each batch, below KServe's prefix, by obstore: the extra `cloud`.

    Credentials and AWS_ENDPOINT_URL come from the environment, as for models.
    """

    def __init__(self, settings: LogSettings, builder: EventBuilder) -> None:
        parts = urlsplit(settings.url)
        self._bucket, self._url, self._builder = parts.netloc, settings.url, builder
        places = (parts.path.strip("/"), settings.namespace, settings.service, settings.component, settings.folder)
        self._prefix = "/".join(filter(None, (place.strip("/") for place in places)))
        self._put: Callable[[str, bytes], object] | None = None

    def send(self, events: Sequence[LogEvent]) -> None:
        now, first = time.time(), events[0]
        data = b"".join(self._builder.line(event, now) for event in events)
        number = f"{first.at:.6f}".replace(".", "-")  # ids are the client's choice: alone they could overwrite
        key = f"{self._prefix}/{number}-{quote(first.id, safe='')[:100]}-{first.kind}.jsonl"
        try:
            self._put = self._put or _open(self._bucket)
            self._put(key, data)
        except ImportError:
            raise Undelivered(f"{self._url}: S3 needs the extra pilotlight[cloud]", 0, len(events)) from None
        except Exception as error:  # obstore's errors have no common class of ours
            reason = str(error).partition("\n")[0][:300]
            raise Undelivered(f"{self._url}: {reason}") from error

    def close(self) -> None:
        """Connections end with the store."""


def _open(bucket: str) -> Callable[[str, bytes], object]:
    from datetime import timedelta

    from obstore.store import S3Store

    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    options = {"timeout": timedelta(seconds=6 * TIMEOUT_S), "connect_timeout": timedelta(seconds=TIMEOUT_S)}
    store = S3Store(
        bucket, **({"endpoint": endpoint} if endpoint else {}),
        client_options={**options, "allow_http": endpoint.startswith("http://")}, retry_config={"max_retries": 1},
    )  # fmt: skip
    return lambda key, data: store.put(key, data)


def open_sink(settings: LogSettings) -> Sink:
    """Return the sink of a URL that `settings.check` accepts."""
    builder, scheme = EventBuilder(settings), urlsplit(settings.url).scheme
    if scheme == "file":
        return FileSink(urlsplit(settings.url).path, builder)
    return S3Sink(settings, builder) if scheme == "s3" else HttpSink(settings.url, builder)
