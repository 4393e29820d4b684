"""KEDA external-push scaler (`externalscaler.ExternalScaler` over gRPC) on the demand of all gateway replicas.

KEDA opens one stream per trigger to one replica. The stream sends `true` as soon as a request waits at any replica,
again every few seconds while there are requests, and `false` once there are none; KEDA decides about scaling.
"""

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from pilotlight.gateway.cluster.demand import Demand, WorkloadKey
from pilotlight.gateway.listeners import Address, CannotListen
from pilotlight.wire import protobuf
from pilotlight.wire.protobuf import delimited, varint

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

Value = int | memoryview  # of a field


# Messages of KEDA's externalscaler.proto:
# ScaledObjectRef         name = 1, namespace = 2, scalerMetadata = 3 (map: key = 1, value = 2)
# GetMetricsRequest       scaledObjectRef = 1, metricName = 2
# IsActiveResponse        result = 1
# GetMetricSpecResponse   metricSpecs = 1: metricName = 1, targetSize = 2, targetSizeFloat = 3
# GetMetricsResponse      metricValues = 1: metricName = 1, metricValue = 2, metricValueFloat = 3
class ScaledObjectRef(NamedTuple):
    """`metadata` is that of the trigger."""

    name: str
    namespace: str
    metadata: dict[str, str]


class MetricsRequest(NamedTuple):
    scaled_object: ScaledObjectRef
    metric: str


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
            message = f"targetConcurrency = {written}, must be a number above 0: the target requests per replica"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, message)
        return write_metric(METRIC, target or 0.0)

    async def _metrics(self, request: MetricsRequest, context: Any) -> bytes:
        self._refresh()
        total = self._demand.total(workload_of(request.scaled_object), self._clock())
        return write_metric(request.metric or METRIC, float(total))

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


def read_scaled_object(raw: bytes | memoryview) -> ScaledObjectRef:
    fields = _fields(memoryview(raw))
    entries = (_fields(entry) for entry in fields.get(3, ()))
    metadata = {_last(entry, 1): _last(entry, 2) for entry in entries}
    return ScaledObjectRef(_last(fields, 1), _last(fields, 2), metadata)


def read_metrics_request(raw: bytes) -> MetricsRequest:
    fields = _fields(memoryview(raw))
    reference = protobuf.payload(fields[1][-1], "scaledObjectRef") if 1 in fields else b""
    return MetricsRequest(read_scaled_object(reference), _last(fields, 2))


def write_active(active: bool) -> bytes:
    """Encode IsActiveResponse; an absent field means false."""
    return b"\x08\x01" if active else b""


def write_metric(name: str, value: float) -> bytes:
    """Encode GetMetricSpecResponse or GetMetricsResponse: the value rounded for older versions of KEDA, and exact."""
    metric = delimited(1, name.encode()) + b"\x10" + varint(round(value)) + b"\x19" + struct.pack("<d", value)
    return delimited(1, metric)


def _fields(raw: Value) -> dict[int, list[Value]]:
    """Return the values of each field, by its number. Raises MalformedMessage."""
    values: dict[int, list[Value]] = {}
    for number, _, value in protobuf.fields(protobuf.payload(raw, "a message")):
        values.setdefault(number, []).append(value)
    return values


def _last(fields: Mapping[int, Sequence[Value]], number: int) -> str:
    """Return a text; of a repeated field the last one counts."""
    values = fields.get(number)
    return str(protobuf.payload(values[-1], f"field {number}"), "utf-8", "replace") if values else ""
