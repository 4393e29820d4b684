"""Request log of the predictor, where no gateway writes it: inference requests over HTTP and their responses."""

import time
from collections.abc import AsyncIterator, Callable, Iterable

from pilotlight.contract import HEADER_REQUEST_ID
from pilotlight.wire.http1 import Buffer
from pilotlight.wire.request_log.events import LogEvent
from pilotlight.wire.request_log.sender import RequestLog
from pilotlight_predictor.frontends.http.messages import HttpRequest, HttpResponse, close_stream
from pilotlight_predictor.observability.logs import new_request_id


class RequestLogger:
    """Copies the first bytes of requests and responses to a log, without delaying them."""

    def __init__(self, log: RequestLog, revision: str) -> None:
        self._log, self._revision = log, revision
        self._limit = log.settings.max_bytes if log.settings.payload else 0

    def attach(self, request: HttpRequest) -> None:
        """Log a request and its response, unless the sample leaves it out."""
        if not self._log.samples():
            return
        finish, settings = request.finish, self._log.settings
        identity = request.header(HEADER_REQUEST_ID) or new_request_id()
        if settings.logs_requests:
            encoded = request.header("content-encoding") or "identity"
            self._offer(
                request, identity, request.header("content-type"), _first([request.body], self._limit),
                len(request.body), None, encoded != "identity",
            )  # fmt: skip

        def log_response(response: HttpResponse, body: bytes, size: int) -> None:
            encoded = (response.headers or {}).get("Content-Encoding", "identity") != "identity"
            self._offer(request, identity, response.content_type, body, size, response.status, encoded)

        def finish_and_log(response: HttpResponse) -> None:
            request.finish = finish  # break the cycle: it would hold the body until the next garbage collection
            if isinstance(response.body, list):  # before it is sent: its buffers may be reused
                size = sum(memoryview(piece).nbytes for piece in response.body)
                log_response(response, _first(response.body, self._limit), size)
            else:
                response.body = self._capture(response.body, lambda *body: log_response(response, *body))
            finish(response)

        if settings.logs_responses:
            request.finish = finish_and_log

    def _offer(
        self, request: HttpRequest, identity: str, content_type: str, body: bytes, size: int, status: int | None,
        encoded: bool,
    ) -> None:  # fmt: skip
        event = LogEvent(
            identity, time.time(), request.method, request.path[:1024], request.headers, content_type, body, size,
            status, self._revision, "", encoded,
        )  # fmt: skip
        self._log.offer(event)

    async def _capture(self, stream: AsyncIterator[bytes], done: Callable[[bytes, int], None]) -> AsyncIterator[bytes]:
        """Pass a stream on; log its first bytes at its end, also if the client leaves."""
        captured, size = bytearray(), 0
        try:
            async for piece in stream:
                size += len(piece)
                captured += piece[: max(0, self._limit - len(captured))]
                yield piece
        finally:
            done(bytes(captured), size)
            await close_stream(stream)


def _first(pieces: Iterable[Buffer], limit: int) -> bytes:
    found = bytearray()
    for piece in pieces:
        if len(found) >= limit:
            break
        found += memoryview(piece).cast("B")[: limit - len(found)]
    return bytes(found)
