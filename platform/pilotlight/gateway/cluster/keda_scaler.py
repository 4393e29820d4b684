"""KEDA external-push scaler.

Protobuf messages of KEDA's external scaler. Pure; without a library, for a handful of fields.

ScaledObjectRef         name = 1, namespace = 2, scalerMetadata = 3 (map: key = 1, value = 2)
GetMetricsRequest       scaledObjectRef = 1, metricName = 2
IsActiveResponse        result = 1
GetMetricSpecResponse   metricSpecs = 1: metricName = 1, targetSize = 2, targetSizeFloat = 3
GetMetricsResponse      metricValues = 1: metricName = 1, metricValue = 2, metricValueFloat = 3

KEDA external-push scaler (`externalscaler.ExternalScaler` over gRPC) on the demand of all gateway replicas.

KEDA opens one stream per trigger to one replica. The stream sends `true` as soon as a request waits at any replica,
again every few seconds while there are requests, and `false` once there are none; KEDA decides about scaling.
"""

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple

from pilotlight.errors import PlatformError
from pilotlight.gateway.cluster.demand import Demand, WorkloadKey
from pilotlight.gateway.listeners import Address, CannotListen

VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
FIXED32: Final = 5


class MalformedMessage(PlatformError):
    """Bytes that are no valid message."""


class ScaledObjectRef(NamedTuple):
    """`metadata` is that of the trigger."""

    name: str
    namespace: str
    metadata: dict[str, str]


class MetricsRequest(NamedTuple):
    scaled_object: ScaledObjectRef
    metric: str


def read_scaled_object(raw: bytes) -> ScaledObjectRef:
    name = namespace = ""
    metadata: dict[str, str] = {}
    for number, value in _fields(raw):
        if number == 1:
            name = _text(value)
        elif number == 2:
            namespace = _text(value)
        elif number == 3:
            entry = dict(_fields(value)) if isinstance(value, bytes) else {}
            metadata[_text(entry.get(1, b""))] = _text(entry.get(2, b""))
    return ScaledObjectRef(name, namespace, metadata)


def read_metrics_request(raw: bytes) -> MetricsRequest:
    fields = dict(_fields(raw))
    reference = fields.get(1, b"")
    scaled_object = read_scaled_object(reference if isinstance(reference, bytes) else b"")
    return MetricsRequest(scaled_object, _text(fields.get(2, b"")))


def write_active(active: bool) -> bytes:
    """Encode IsActiveResponse; an absent field means false."""
    return b"\x08\x01" if active else b""


def write_spec(metric: str, target: float) -> bytes:
    return _delimited(1, _metric(metric, target))


def write_value(metric: str, value: float) -> bytes:
    return _delimited(1, _metric(metric, value))


def _metric(name: str, value: float) -> bytes:
    """Encode both fields: rounded for older versions of KEDA, and exact."""
    return _delimited(1, name.encode()) + b"\x10" + _varint(round(value)) + b"\x19" + struct.pack("<d", value)


def _delimited(number: int, payload: bytes) -> bytes:
    return _varint(number << 3 | BYTES) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _fields(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field, unknown ones included."""
    at = 0
    while at < len(raw):
        key, at = _read_varint(raw, at)
        kind = key & 7
        if kind == VARINT:
            value, at = _read_varint(raw, at)
            yield key >> 3, value
            continue
        if kind not in (BYTES, FIXED32, FIXED64):
            raise MalformedMessage(f"field {key >> 3} has wire type {kind}")
        length, at = _read_varint(raw, at) if kind == BYTES else (4 if kind == FIXED32 else 8, at)
        if at + length > len(raw):
            raise MalformedMessage(f"field {key >> 3} claims {length} bytes, {len(raw) - at} are left")
        yield key >> 3, raw[at : at + length]
        at += length


def _read_varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(raw) and shift < 70:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise MalformedMessage("a number does not end")


def _text(value: int | bytes) -> str:
    if isinstance(value, int):
        raise MalformedMessage("a number stands where a text must")
    return value.decode(errors="replace")


SERVICE: Final = "externalscaler.ExternalScaler"
METRIC: Final = "concurrency"
REPEAT_ACTIVE_S: Final = 5.0  # KEDA counts its cooldown from the last `true`, so it is repeated under steady load
POLL_S: Final = 0.5  # delay until the end of all requests is noticed
GRACE_S: Final = 1.0
# KEDA opens one stream per workload; beyond this limit it polls. Callers are not authenticated: these limits bound the
# memory, and the chart's NetworkPolicy admits KEDA only.
STREAMS: Final = 4000
CALLS: Final = STREAMS + 100  # leaves some for polling
LONGEST: Final = 1 << 16  # bytes of a request


class KedaScaler:
    """`refresh` updates this pod's own loads before they are used."""

    def __init__(
        self, demand: Demand, refresh: Callable[[], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._demand, self._refresh, self._clock = demand, refresh, clock
        self._wakeups: set[asyncio.Event] = set()
        self._closing = False
        self._server: Any = None

    async def start(self, address: Address) -> int:
        """Listen and return the port (0: chosen by the system). Raises CannotListen."""
        import grpc.aio

        options = (("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", LONGEST))
        server = grpc.aio.server(options=options, maximum_concurrent_rpcs=CALLS)
        server.add_generic_rpc_handlers((self._handlers(),))
        try:
            port = int(server.add_insecure_port(address.host_port))
        except RuntimeError as error:
            raise CannotListen(f"cannot listen on {address.host_port}: {error}") from error
        await server.start()
        self._server = server
        return port

    def notify(self) -> None:
        """Wake all streams: the demand may have changed."""
        for wakeup in self._wakeups:
            wakeup.set()

    async def close(self) -> None:
        """End the streams regularly: KEDA reconnects within 2 s, but backs off exponentially after a broken one."""
        self._closing = True
        self.notify()
        if self._server is not None:
            await self._server.stop(GRACE_S)

    def _handlers(self) -> Any:
        import grpc

        def plain(raw: bytes) -> bytes:
            return raw

        return grpc.method_handlers_generic_handler(SERVICE, {
            "IsActive": grpc.unary_unary_rpc_method_handler(self._is_active, read_scaled_object, plain),
            "StreamIsActive": grpc.unary_stream_rpc_method_handler(self._stream, read_scaled_object, plain),
            "GetMetricSpec": grpc.unary_unary_rpc_method_handler(self._spec, read_scaled_object, plain),
            "GetMetrics": grpc.unary_unary_rpc_method_handler(self._metrics, read_metrics_request, plain),
        })  # fmt: skip

    async def _is_active(self, request: ScaledObjectRef, context: Any) -> bytes:
        self._refresh()
        return write_active(self._demand.active(workload_of(request), self._clock()))

    async def _spec(self, request: ScaledObjectRef, context: Any) -> bytes:
        target = target_of(request)
        if target is None:
            import grpc

            written = request.metadata.get("targetConcurrency", "")
            message = f"targetConcurrency = {written}, must be a number above 0: requests that one replica shall have"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, message)
        return write_spec(METRIC, target or 0.0)

    async def _metrics(self, request: MetricsRequest, context: Any) -> bytes:
        self._refresh()
        total = self._demand.total(workload_of(request.scaled_object), self._clock())
        return write_value(request.metric or METRIC, float(total))

    async def _stream(self, request: ScaledObjectRef, context: Any) -> AsyncIterator[bytes]:
        if len(self._wakeups) >= STREAMS:
            import grpc

            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{STREAMS} streams are open; poll IsActive")
        workload, last, sent_at = workload_of(request), None, 0.0
        wakeup = asyncio.Event()
        self._wakeups.add(wakeup)
        try:
            while not self._closing:
                wakeup.clear()
                now = self._clock()
                active = self._demand.active(workload, now)
                if active != last or (active and now - sent_at >= REPEAT_ACTIVE_S):
                    last, sent_at = active, now
                    yield write_active(active)
                with suppress(TimeoutError):
                    await asyncio.wait_for(wakeup.wait(), POLL_S if last else None)
        finally:
            self._wakeups.discard(wakeup)


def workload_of(request: ScaledObjectRef) -> WorkloadKey:
    """Return the workload, always in the namespace of the ScaledObject, whatever its trigger metadata say.

    Other callers could name any namespace: access is limited by the NetworkPolicy.
    """
    return request.namespace, request.metadata.get("workload") or request.name


def target_of(request: ScaledObjectRef) -> float | None:
    """Return the target concurrency; None: not set, or no number above 0."""
    with suppress(ValueError):
        target = float(request.metadata.get("targetConcurrency", ""))
        if 0 < target < float("inf"):
            return target
    return None
