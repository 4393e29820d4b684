"""Prefill stage of a disaggregated request: read the body, call a prefill engine before or beside the decoder.

The answer of the prefill engine is read to its end: to close the connection would abort the transfer of its KV cache.
"""

import asyncio
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pilotlight.contract import HEADER_REQUEST_ID
from pilotlight.gateway.engine_router.disaggregation import PROTOCOLS, RESERVED_FIELDS, Object, PrefillProtocol
from pilotlight.gateway.engine_router.settings import RouterSettings
from pilotlight.gateway.metrics_and_reports import log
from pilotlight.gateway.proxy.body_routing import FRAMING
from pilotlight.gateway.proxy.prepare_request import with_headers
from pilotlight.gateway.proxy.proxied_request import ProxiedRequest
from pilotlight.gateway.proxy.responses import (
    BODY_TIMEOUT,
    CONNECTION_LOST,
    INTERIM_RESPONSE,
    TIMED_OUT,
    ErrorResponse,
    RequestRejected,
)
from pilotlight.gateway.proxy.upstream import CONNECT_S
from pilotlight.gateway.routing_table import Replica
from pilotlight.wire.http1_strict_parser import CHUNKED, unchunked
from pilotlight.wire.http_client import LoopbackResponse, connect, decode_json, exchange

MAX_BODY: Final = 64 << 20
BODY_S: Final = 300.0
POLL_S, SLOW_POLL_S = 0.002, 0.25  # 800 clients that send nothing took a fifth of a core at 0.05
PREFILLER: Final = "X-Prefiller-Host-Port"  # of llm-d's routing sidecar
# Other headers by which the sidecar calls an address: no client may send them.
SIDECAR_HEADERS: Final = ("x-prefiller-url", "x-data-parallel-host-port", "x-encoder-hosts-ports")
ENCODED: Final = ErrorResponse(415, "the body has a content-encoding, but the router adds fields; send it uncompressed")
TOO_LONG: Final = ErrorResponse(413, f"the body has more than {MAX_BODY >> 20} MiB; send a shorter prompt")
NO_OBJECT: Final = ErrorResponse(400, "the body must be a JSON object")
UNREACHABLE: Final = ErrorResponse(503, "no prefill engine can be reached; retry later", {"Retry-After": "5"})


@dataclass(slots=True)
class PrefillHalf:
    """`replica` is the prefill engine that works on it; empty: none."""

    replica: str = ""
    task: asyncio.Task[None] | None = None


class PrefillStage:
    """The prefill engines of one router; `submit` sends a request to a decoder, `pick` chooses an engine by loads."""

    def __init__(
        self,
        settings: RouterSettings,
        submit: Callable[[ProxiedRequest], None],
        timeout_s: float,
        pick: Callable[[Mapping[str, int]], str],
    ) -> None:
        self.replicas: tuple[Replica, ...] = ()
        self._protocol = PROTOCOLS[settings.protocol]
        self._bootstrap_port, self._timeout_s = settings.bootstrap_port, timeout_s
        self._submit = submit
        self._pick = pick
        self._halves: dict[ProxiedRequest, PrefillHalf] = {}

    def takes(self, request: ProxiedRequest) -> bool:
        """Whether the request has a prefill half that is not started yet."""
        if request in self._halves:
            return False
        content_type = request.prepared.head.headers.get("content-type") or "json"  # an engine may take none for JSON
        return self._protocol is None or (request.method == "POST" and "json" in content_type.lower())

    def start(self, request: ProxiedRequest) -> None:
        half = self._halves[request] = PrefillHalf()
        if self._protocol is not None:
            half.task = asyncio.get_running_loop().create_task(self._serve(request, half, self._protocol))
            return
        replica = next(self._by_load())
        half.replica = replica.id
        host = f"[{replica.host}]" if ":" in replica.host else replica.host
        head = with_headers(request.prepared.upstream_head, {PREFILLER: f"{host}:{replica.port}"}, SIDECAR_HEADERS)
        request.rewrite(head)
        self._submit(request)

    def sweep(self) -> None:
        """End prefill halves whose request is over: answered, failed, or its client has disconnected."""
        for request in [request for request in self._halves if request.finished]:
            half = self._halves.pop(request)
            if half.task is not None:
                half.task.cancel()

    def _by_load(self) -> Iterator[Replica]:
        """Yield the prefill engines, the least loaded first."""
        replicas = {replica.id: replica for replica in self.replicas}
        working = [half.replica for request, half in self._halves.items() if not request.finished]
        while replicas:
            chosen = self._pick({name: working.count(name) for name in replicas})
            yield replicas.pop(chosen)

    async def _serve(self, request: ProxiedRequest, half: PrefillHalf, protocol: PrefillProtocol) -> None:
        try:
            raw = await _read_body(request)
            if not raw or request.prepared.head.target.partition("?")[0] not in protocol.paths:
                self._decode_alone(request, raw)
                return
            body = _without_reserved(_decoded(raw))
            async with asyncio.timeout(self._timeout_s):
                await self._prefill(request, half, protocol, body)
        except RequestRejected as rejected:
            _fail(request, rejected.response)
        except TimeoutError:
            _fail(request, TIMED_OUT)
        except Exception as error:  # even a bug must not leave the client waiting
            if not request.finished:
                log("router.prefill_failed", f"{half.replica}: {type(error).__name__}: {error}", level="WARNING")
            _fail(request, CONNECTION_LOST)
        finally:
            half.replica = ""

    async def _prefill(
        self, request: ProxiedRequest, half: PrefillHalf, protocol: PrefillProtocol, body: Object
    ) -> None:
        """Call one prefill engine after another, until one answers. Raise RequestRejected with its error."""
        for replica in self._by_load():
            half.replica = replica.id
            sent = protocol.prefill_body(body, replica.host, self._bootstrap_port)
            if sent is None:
                self._decode(request, body)
                return
            try:
                async with asyncio.timeout(CONNECT_S):
                    connection = await connect(replica.host, replica.port)
            except OSError:
                continue
            with connection:
                message = _message(request, sent)
                if protocol.concurrent:
                    self._decode(request, protocol.decode_body(body, sent, {}))
                answer = await exchange(connection, message)
            if answer.chunked:
                answer = LoopbackResponse(answer.status, unchunked(answer.body))
            if answer.status == 503 and not protocol.concurrent:
                continue
            if answer.status >= 400:
                text = answer.body if answer.json() else b""
                raise RequestRejected(ErrorResponse(answer.status, "the prefill engine failed", body=text))
            if not protocol.concurrent:
                half.replica = ""
                self._decode(request, protocol.decode_body(body, sent, answer.json()))
            return
        raise RequestRejected(UNREACHABLE)

    def _decode_alone(self, request: ProxiedRequest, raw: bytes) -> None:
        """Submit a request of another path, which engines may read as one of the protocol's, without its fields."""
        body = _decoded(raw) if raw else {}
        if RESERVED_FIELDS & body.keys():
            self._decode(request, _without_reserved(body))
        elif not request.finished:
            self._submit(request)

    def _decode(self, request: ProxiedRequest, body: Object) -> None:
        """Submit the request with this body to a decoder, unless its client has disconnected."""
        if not request.finished:
            text = json.dumps(body).encode()
            head = with_headers(request.prepared.upstream_head, {"Content-Length": str(len(text))}, FRAMING)
            request.rewrite(head, text)
            self._submit(request)


def _without_reserved(body: Object) -> Object:
    return {name: value for name, value in body.items() if name not in RESERVED_FIELDS}


async def _read_body(request: ProxiedRequest) -> bytes:
    """Wait for the whole body. Raise RequestRejected."""
    head, plane, seen, wait_s = request.prepared.head, request.client.plane, 0, POLL_S
    if head.headers.get("content-encoding", "identity") != "identity":
        raise RequestRejected(ENCODED)
    if "expect" in head.headers and not request.body_complete:
        request.forward_interim(INTERIM_RESPONSE)
    until = plane.clock() + BODY_S
    while not request.body_complete:
        if max(request.buffered, head.length) > MAX_BODY:
            raise RequestRejected(TOO_LONG)
        if problem := plane.buffer_budget.check(request.buffered):
            raise RequestRejected(ErrorResponse(503, problem, {"Retry-After": "5"}))
        if plane.clock() > until:
            raise RequestRejected(BODY_TIMEOUT)
        request.resume_body()
        wait_s = POLL_S if request.buffered > seen else min(2 * wait_s, SLOW_POLL_S)
        seen = request.buffered
        await asyncio.sleep(wait_s)
    request.resume_body()  # a paused connection would not show that its client disconnects
    raw = request.body_prefix(sys.maxsize)
    return unchunked(raw) if head.length == CHUNKED else raw


def _decoded(raw: bytes) -> Object:
    """Return the JSON object. Raise RequestRejected."""
    try:
        body = decode_json(raw)
    except ValueError:
        raise RequestRejected(NO_OBJECT) from None
    if not isinstance(body, dict):
        raise RequestRejected(NO_OBJECT)
    return body


def _message(request: ProxiedRequest, body: Object) -> bytes:
    """Return the request for the prefill engine: the client's headers and id, another body."""
    text = json.dumps(body).encode()
    headers = {"Content-Length": str(len(text)), HEADER_REQUEST_ID: request.request_id, "Connection": "close"}
    return with_headers(request.prepared.upstream_head, headers, FRAMING) + b"\r\n" + text


def _fail(request: ProxiedRequest, error: ErrorResponse) -> None:
    """Fail the request, unless a decoder has begun to answer it."""
    if not request.finished and not request.response_started:
        request.cancel(error)
