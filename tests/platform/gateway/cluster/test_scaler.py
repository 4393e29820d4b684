"""KEDA's side of the gateway, asked by a client that the compiler made."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest
from tests.eventually import eventually_async
from tests.platform.gateway.linked import DEADLINE_S, in_loop

from pilotlight.gateway.cluster import keda_scaler
from pilotlight.gateway.cluster.demand import Demand
from pilotlight.gateway.cluster.keda_scaler import KedaScaler
from pilotlight.gateway.listeners import Address

IRIS = ("models", "iris-predictor")


class Bed:
    def __init__(self) -> None:
        self.now = 100.0
        self.demand = Demand()
        self.scaler = KedaScaler(self.demand, lambda: None, lambda: self.now)
        self.channel: Any = None
        self.stub: Any = None

    def note(self, sender: str, number: int | None, key: tuple[str, str] = IRIS) -> None:
        self.demand.record(sender, {} if number is None else {key: number}, self.now)
        self.scaler.notify()


@asynccontextmanager
async def serving(keda: SimpleNamespace) -> AsyncIterator[Bed]:
    bed = Bed()
    port = await bed.scaler.start(Address("127.0.0.1", 0))
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        bed.channel, bed.stub = channel, keda.stub(channel)
        yield bed
    await bed.scaler.close()


def about(keda: SimpleNamespace, **metadata: str) -> Any:
    given = {"service": "iris", "namespace": "models", "workload": "iris-predictor", "targetConcurrency": "10"}
    return keda.messages.ScaledObjectRef(name="iris", namespace="models", scalerMetadata={**given, **metadata})


@in_loop
async def test_counts_of_all_replicas_are_one_number(keda: SimpleNamespace) -> None:
    async with serving(keda) as bed:
        bed.note("", 3)
        bed.note("10.0.0.2", 4)
        bed.note("10.0.0.3", 100, key=("others", "iris-predictor"))
        asked = keda.messages.GetMetricsRequest(scaledObjectRef=about(keda), metricName="concurrency")
        (value,) = (await bed.stub.GetMetrics(asked)).metricValues
        assert (value.metricName, value.metricValue, value.metricValueFloat) == ("concurrency", 7, 7.0)
        bed.now += 3.0
        bed.note("", 3)
        (value,) = (await bed.stub.GetMetrics(asked)).metricValues
        assert value.metricValue == 3  # the other one has been silent for 3 s


@in_loop
async def test_the_target_is_the_triggers(keda: SimpleNamespace) -> None:
    async with serving(keda) as bed:
        (spec,) = (await bed.stub.GetMetricSpec(about(keda, targetConcurrency="300"))).metricSpecs
        assert (spec.metricName, spec.targetSize, spec.targetSizeFloat) == ("concurrency", 300, 300.0)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await bed.stub.GetMetricSpec(about(keda, targetConcurrency="many"))
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "targetConcurrency = many" in (refused.value.details() or "")


@in_loop
async def test_a_workload_is_active_while_any_replica_names_it(keda: SimpleNamespace) -> None:
    async with serving(keda) as bed:
        assert not (await bed.stub.IsActive(about(keda))).result
        bed.note("10.0.0.2", 0)
        assert (await bed.stub.IsActive(about(keda))).result
        assert not (await bed.stub.IsActive(about(keda, workload="another"))).result


def test_a_start_counts_for_as_long_as_it_may_take_and_not_again_while_it_goes_on() -> None:
    demand = Demand()
    assert demand.set_starting({IRIS: 600.0}, 100.0)
    assert not demand.set_starting({IRIS: 600.0}, 400.0), "the same start"
    assert demand.active(IRIS, 699.0)
    assert not demand.active(IRIS, 700.0), "failed: KEDA may end it"
    assert demand.total(IRIS, 699.0) == 0, "nobody waits"
    assert demand.set_starting({}, 800.0)
    assert demand.set_starting({IRIS: 600.0}, 900.0)
    assert demand.active(IRIS, 901.0)


@in_loop
async def test_metadata_of_a_scaled_object_lead_to_no_other_namespace(keda: SimpleNamespace) -> None:
    async with serving(keda) as bed:
        bed.note("", 5, key=("others", "iris-predictor"))
        assert not (await bed.stub.IsActive(about(keda, namespace="others"))).result


@in_loop
async def test_the_stream_says_at_once_what_is_and_what_becomes(
    keda: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keda_scaler, "POLL_S", 3600.0)
    async with serving(keda) as bed:
        stream = bed.stub.StreamIsActive(about(keda))
        assert not (await stream.read()).result
        bed.note("", 1)
        assert (await asyncio.wait_for(stream.read(), DEADLINE_S)).result
        bed.note("", None)
        assert not (await asyncio.wait_for(stream.read(), DEADLINE_S)).result


@in_loop
async def test_the_stream_repeats_itself_while_requests_come(keda: SimpleNamespace) -> None:
    """KEDA counts its cooldown from the last time that it heard true."""
    async with serving(keda) as bed:
        stream = bed.stub.StreamIsActive(about(keda))
        assert not (await stream.read()).result
        bed.note("", 1)
        assert (await stream.read()).result
        bed.now += keda_scaler.REPEAT_ACTIVE_S
        bed.note("", 1)
        assert (await stream.read()).result


@in_loop
async def test_a_peer_that_falls_silent_ends_the_demand(keda: SimpleNamespace) -> None:
    async with serving(keda) as bed:
        bed.note("10.0.0.2", 1)
        stream = bed.stub.StreamIsActive(about(keda))
        assert (await stream.read()).result
        bed.now += 3.0
        assert not (await stream.read()).result


@in_loop
async def test_streams_end_in_order_when_the_gateway_leaves(keda: SimpleNamespace) -> None:
    async with serving(keda) as bed:
        stream = bed.stub.StreamIsActive(about(keda))
        await stream.read()
        closing = asyncio.create_task(bed.scaler.close())
        assert await stream.read() is grpc.aio.EOF
        assert await stream.code() == grpc.StatusCode.OK
        await closing


@in_loop
async def test_bytes_that_are_no_message_are_refused(keda: SimpleNamespace) -> None:
    async with serving(keda) as bed:
        call = bed.channel.unary_unary("/externalscaler.ExternalScaler/IsActive")
        for raw in (b"\xff", b"\x0a\x05ab", b"\x0b", b"\x08\x01"):
            with pytest.raises(grpc.aio.AioRpcError):
                await call(raw)
        assert await call(b"\x22\x01x\x29" + bytes(8)) == b""  # fields of a later version pass


async def opened(bed: Bed, keda: SimpleNamespace) -> Any:
    stream = bed.stub.StreamIsActive(about(keda))
    await stream.read()
    return stream


@in_loop
async def test_streams_are_bounded_and_those_without_one_can_still_poll(
    keda: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keda_scaler, "STREAMS", 2)
    async with serving(keda) as bed:
        first, _ = await opened(bed, keda), await opened(bed, keda)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await opened(bed, keda)
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert not (await bed.stub.IsActive(about(keda))).result
        first.cancel()
        await eventually_async(lambda: len(bed.scaler._wakeups) == 1, "left")
        await opened(bed, keda)


@in_loop
async def test_calls_are_bounded(keda: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keda_scaler, "CALLS", 1)
    async with serving(keda) as bed:
        _kept = await opened(bed, keda)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await bed.stub.IsActive(about(keda))
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


@in_loop
async def test_a_question_longer_than_any_of_kedas_is_not_read(keda: SimpleNamespace) -> None:
    async with serving(keda) as bed:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await bed.stub.IsActive(about(keda, service="x" * keda_scaler.LONGEST))
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
