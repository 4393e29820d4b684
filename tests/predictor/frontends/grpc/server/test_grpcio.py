"""gRPC over HTTP/2 of our own, asked by grpcio's clients: streams, metadata, compression, sizes, pings."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from tests.predictor.frontends.grpc.server.conftest import INFER, STREAM, Message
from tests.serving import RunningServer

from pilotlight.wire.http2.connection import MAX_STREAMS

LATE = 80  # messages


@pytest.fixture(scope="module")
def values(message: Message) -> Callable[[bytes], Any]:
    def read(answer: bytes) -> Any:
        response = message("inference.ModelInferResponse")
        response.ParseFromString(answer)
        return np.frombuffer(response.raw_output_contents[0], "<f4")

    return read


def refused(call: Callable[[], Any]) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value


@pytest.mark.parametrize("size", [0, 1, 4000, 4096, 16_000, 70_000, 300_000, 6_000_000])
def test_a_message_of_any_size_comes_back(
    channel: grpc.Channel, ask: Callable[..., bytes], values: Callable[[bytes], Any], size: int
) -> None:
    numbers = np.arange(size, dtype=np.float32)
    assert (values(channel.unary_unary(INFER)(ask(numbers), timeout=60)) == numbers).all()


@pytest.mark.parametrize("how", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_compressed_messages_are_read(
    channel: grpc.Channel, ask: Callable[..., bytes], values: Callable[[bytes], Any], how: grpc.Compression
) -> None:
    numbers = np.zeros(100_000, np.float32)
    assert (values(channel.unary_unary(INFER)(ask(numbers), timeout=30, compression=how)) == numbers).all()


def test_hundreds_of_calls_of_one_connection_are_answered_each_with_its_own(
    channel: grpc.Channel, ask: Callable[..., bytes], values: Callable[[bytes], Any]
) -> None:
    calls = [channel.unary_unary(INFER).future(ask([number]), timeout=60) for number in range(400)]
    assert [values(call.result())[0] for call in calls] == list(range(400))


def test_more_calls_than_a_connection_may_have_wait_for_their_turn(
    address: str, ask: Callable[..., bytes], values: Callable[[bytes], Any]
) -> None:
    async def scene() -> list[float]:
        async with grpc.aio.insecure_channel(address) as opened:
            call = opened.unary_unary(INFER)
            answers = await asyncio.gather(*(call(ask([number]), timeout=60) for number in range(MAX_STREAMS + 200)))
        return [float(values(answer)[0]) for answer in answers]

    assert asyncio.run(scene()) == list(range(MAX_STREAMS + 200))


def test_many_messages_of_one_stream_are_answered_in_order(
    channel: grpc.Channel, ask: Callable[..., bytes], message: Message
) -> None:
    sizes = [1, 50_000, 3, 200_000, 7] * 4
    answers = channel.stream_stream(STREAM)((ask(np.zeros(size)) for size in sizes), timeout=60)
    read = message("inference.ModelStreamInferResponse")
    lengths = []
    for answer in answers:
        read.ParseFromString(answer)
        lengths.append(len(read.infer_response.raw_output_contents[0]) // 4)
    assert lengths == sizes


def test_metadata_reaches_the_call_and_binary_metadata_is_no_harm(
    server: RunningServer, channel: grpc.Channel, ask: Callable[..., bytes]
) -> None:
    said = (("x-request-id", "who"), ("some-bin", bytes(range(256))), ("user-defined", "x" * 2000))
    channel.unary_unary(INFER)(ask([1]), timeout=60, metadata=said)
    server.wait_until(lambda: any(line.get("request_id") == "who" for line in server.log()), "logging the call")


def test_metadata_that_is_too_large_refuses_its_call_alone(channel: grpc.Channel, ask: Callable[..., bytes]) -> None:
    call = channel.unary_unary(INFER)
    error = refused(lambda: call(ask([1]), timeout=60, metadata=(("x", "y" * 40_000),)))
    assert error.code() in {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INTERNAL}
    assert call(ask([1]), timeout=60)


def test_details_of_an_error_keep_every_character(channel: grpc.Channel, ask: Callable[..., bytes]) -> None:
    error = refused(lambda: channel.unary_unary(INFER)(ask([1], "größe % 模型"), timeout=60))
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert "größe % 模型" in error.details()


def test_a_method_that_nobody_serves_is_unimplemented(channel: grpc.Channel) -> None:
    for call in (channel.unary_unary("/no.Such/Method"), channel.stream_unary("/no.Such/Method")):
        given: Any = b"" if isinstance(call, grpc.UnaryUnaryMultiCallable) else iter([b""])
        assert refused(lambda call=call, given=given: call(given, timeout=60)).code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_large_message_that_is_refused_is_gone_with_its_call(
    channel: grpc.Channel, ask: Callable[..., bytes], server: RunningServer
) -> None:
    call, large = channel.unary_unary(INFER), ask(np.zeros(1 << 20))[:-1]
    codes = {refused(lambda: call(large, timeout=60)).code() for _ in range(4)}
    before = server.rss_bytes()
    codes |= {refused(lambda: call(large, timeout=60)).code() for _ in range(20)}
    assert codes == {grpc.StatusCode.INVALID_ARGUMENT}
    assert server.rss_bytes() - before < 40 << 20  # twenty of them have twice that


def test_a_client_that_reads_late_gets_everything(
    channel: grpc.Channel, ask: Callable[..., bytes], server: RunningServer
) -> None:
    """Far more than any window: answers wait at the server, and requests at the client."""
    before = server.rss_bytes()
    answers = channel.stream_stream(STREAM)((ask(np.zeros(100_000)) for _ in range(LATE)), timeout=60)
    server.wait_until(lambda: server.get("/status").json()["in_flight"] == 0, "done with all that it may do")
    assert sum(1 for _ in answers) == LATE
    assert server.rss_bytes() - before < 100 << 20


def test_keepalive_pings_are_answered(address: str, ask: Callable[..., bytes]) -> None:
    eager = [("grpc.keepalive_time_ms", 100), ("grpc.keepalive_timeout_ms", 60_000),
             ("grpc.keepalive_permit_without_calls", 1), ("grpc.http2.max_pings_without_data", 0)]  # fmt: skip
    with grpc.insecure_channel(address, options=eager) as opened:
        call = opened.unary_unary(INFER)
        assert all(call(ask([1], "slow"), timeout=60) for _ in range(15))
