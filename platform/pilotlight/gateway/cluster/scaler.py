"""KEDA's external scaler: `externalscaler.ExternalScaler` over gRPC, answered from the demand of all gateway replicas.

KEDA holds one stream to one replica for each trigger. It hears `true` as soon as a request waits anywhere, again every
few seconds while requests come, and `false` once they have ended; KEDA alone decides what follows from that.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Final

from pilotlight.gateway.addresses import Address, CannotListen
from pilotlight.gateway.cluster.demand import Demand, Key
from pilotlight.gateway.cluster.scaler_words import (
    MetricsAsked,
    ScaledObject,
    read_metrics_asked,
    read_scaled_object,
    write_active,
    write_spec,
    write_value,
)

SERVICE: Final = "externalscaler.ExternalScaler"
METRIC: Final = "concurrency"
AGAIN_S: Final = 5.0  # KEDA counts its cooldown from the last `true`, so a steady trickle must keep saying it
LOOK_S: Final = 0.5  # how soon the end of all requests is noticed
GRACE_S: Final = 1.0
# KEDA holds one stream for each workload; beyond this many it polls. Calls are told apart by nothing but their words,
# so these bounds keep memory, and the chart's NetworkPolicy keeps out who is not KEDA.
STREAMS: Final = 4000
CALLS: Final = STREAMS + 100  # streams leave room for the calls that poll
LONGEST: Final = 1 << 16  # bytes of one question


class Scaler:
    """`refresh` brings this pod's own counts up to date before they are told."""

    def __init__(
        self, demand: Demand, refresh: Callable[[], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._demand, self._refresh, self._clock = demand, refresh, clock
        self._bells: set[asyncio.Event] = set()
        self._closing = False
        self._server: Any = None

    async def start(self, address: Address) -> int:
        """The port, which the system chooses for 0. Raises CannotListen."""
        import grpc.aio

        options = (("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", LONGEST))
        server = grpc.aio.server(options=options, maximum_concurrent_rpcs=CALLS)
        server.add_generic_rpc_handlers((self._handlers(),))
        try:
            port = int(server.add_insecure_port(address.place))
        except RuntimeError as error:
            raise CannotListen(f"cannot listen on {address.place}: {error}") from error
        await server.start()
        self._server = server
        return port

    def ring(self) -> None:
        """Something may have changed: every stream looks at once."""
        for bell in self._bells:
            bell.set()

    async def close(self) -> None:
        """Streams end in order, so that KEDA comes back within 2 s; after a broken one it waits longer each time."""
        self._closing = True
        self.ring()
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
            "GetMetrics": grpc.unary_unary_rpc_method_handler(self._metrics, read_metrics_asked, plain),
        })  # fmt: skip

    async def _is_active(self, asked: ScaledObject, context: Any) -> bytes:
        self._refresh()
        return write_active(self._demand.active(workload_of(asked), self._clock()))

    async def _spec(self, asked: ScaledObject, context: Any) -> bytes:
        target = target_of(asked)
        if target is None:
            import grpc

            written = asked.metadata.get("targetConcurrency", "")
            message = f"targetConcurrency = {written}, must be a number above 0: requests that one replica shall have"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, message)
        return write_spec(METRIC, target or 0.0)

    async def _metrics(self, asked: MetricsAsked, context: Any) -> bytes:
        self._refresh()
        total = self._demand.total(workload_of(asked.about), self._clock())
        return write_value(asked.metric or METRIC, float(total))

    async def _stream(self, asked: ScaledObject, context: Any) -> AsyncIterator[bytes]:
        if len(self._bells) >= STREAMS:
            import grpc

            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{STREAMS} streams are open; poll IsActive")
        workload, told, told_at = workload_of(asked), None, 0.0
        bell = asyncio.Event()
        self._bells.add(bell)
        try:
            while not self._closing:
                bell.clear()
                now = self._clock()
                active = self._demand.active(workload, now)
                if active != told or (active and now - told_at >= AGAIN_S):
                    told, told_at = active, now
                    yield write_active(active)
                with suppress(TimeoutError):
                    await asyncio.wait_for(bell.wait(), LOOK_S if told else None)
        finally:
            self._bells.discard(bell)


def workload_of(asked: ScaledObject) -> Key:
    """In the namespace that KEDA names, the ScaledObject's own, whatever the metadata that its author wrote say.

    Another caller may name any: who may call at all is for the network to say.
    """
    return asked.namespace, asked.metadata.get("workload") or asked.name


def target_of(asked: ScaledObject) -> float | None:
    """None: not said, or no number above 0."""
    with suppress(ValueError):
        target = float(asked.metadata.get("targetConcurrency", ""))
        if 0 < target < float("inf"):
            return target
    return None
