"""gRPC through a real gateway: calls of every kind, to real grpc.aio servers, one choice for each call."""

import asyncio
import hashlib
import json
from collections import Counter
from pathlib import Path

import grpc
import grpc.aio
import numpy as np
import pytest
import tritonclient.grpc as triton
from tests.eventually import eventually_async
from tests.onnx_models import write_identity
from tests.platform.gateway.grpc_replica import (
    LOCAL,
    Code,
    GrpcReplica,
    channel,
    grpc_replica,
    route,
    serving,
    status,
    unary,
)
from tests.platform.gateway.linked import in_loop, linked, new_link
from tests.platform.gateway.test_link import free_port
from tests.serving import RunningServer

from pilotlight.gateway.control_link import Unreachable, Wake
from pilotlight.gateway.grpc_proxy import forwarded_metadata, peer_address, to_headers
from pilotlight.gateway.routing_table import Backend, Replica
from pilotlight.wire.service_access import Access, Rate, TokenQuota


@in_loop
async def test_calls_of_all_four_kinds_pass(tmp_path: Path) -> None:
    async with grpc_replica() as one, serving(tmp_path, one) as (_, port), channel(port) as opened:
        assert await unary(opened)(b"x" * 5_000_000) == b"r1:" + b"x" * 5_000_000
        numbers = opened.unary_stream("/test.Service/Numbers")(b"5")
        assert [each async for each in numbers] == [b"0", b"1", b"2", b"3", b"4"]
        assert await opened.stream_unary("/test.Service/Total")(iter([b"1", b"2", b"39"])) == b"42"
        chat = opened.stream_stream("/test.Service/Chat")()
        for word in (b"a", b"b"):
            await chat.write(word)
            assert await chat.read() == word.upper()  # each answer before the next word
        await chat.done_writing()
        assert await chat.read() is grpc.aio.EOF


@in_loop
async def test_clients_infer_through_it_from_a_replica_that_compresses(tmp_path: Path) -> None:
    write_identity(tmp_path / "models", "identity", "FP32", ["n", "m"])
    flags = ("--model-repository", str(tmp_path / "models"), "--grpc-port=0")
    server = await asyncio.to_thread(RunningServer, tmp_path, *flags, "--grpc-infer-response-compression-level=high")
    rows = np.zeros((1, 10_000), np.float32)
    tensor = triton.InferInput("x", [1, 10_000], "FP32").set_data_from_numpy(rows)

    def calls(port: int) -> None:
        for _ in range(2):  # the first call of the gateway's connection has a compressed response
            with triton.InferenceServerClient(f"127.0.0.1:{port}", channel_args=[*LOCAL]) as client:
                np.testing.assert_array_equal(client.infer("identity", [tensor]).as_numpy("y"), rows)
                assert client.is_server_live()

    with server:
        event = await asyncio.to_thread(server.wait_for_event, "grpc.listening")
        async with serving(tmp_path, GrpcReplica("r1", event["grpc_port"])) as (_, port):
            await asyncio.to_thread(calls, port)


@in_loop
async def test_metadata_status_and_trailers_pass_both_ways(tmp_path: Path) -> None:
    async with grpc_replica() as one, serving(tmp_path, one, audit=True) as (_, port), channel(port) as opened:
        sent = (("x-mine", "1"), ("x-mine-bin", b"\x01\xfe"), ("x-request-id", "abc"), ("traceparent", "00-1-2-01"))
        call = unary(opened)(b"", metadata=sent)
        first, last = dict(await call.initial_metadata()), dict(await call.trailing_metadata())
        assert first == {"x-first": "a", "x-bin": b"\x00\xff", "x-request-id": "abc"}
        assert last == {"x-last": "b", "x-last-bin": b"\xff\x00"}
        arrived = one.calls[0]["metadata"]
        assert {name: arrived[name] for name, _ in sent} == dict(sent)
        assert arrived["x-forwarded-for"] == "127.0.0.1"
        assert await status(unary(opened, "Failing")(b"")) == (Code.FAILED_PRECONDITION, "not füll")
        failing = unary(opened, "Failing")(b"")
        assert dict(await failing.trailing_metadata()) == {"x-why": "because"}
        ends = {(await status(unary(opened, "Nothing")(b"")))[0] for _ in range(50)}  # before all is said, often
        assert ends == {Code.UNIMPLEMENTED}
        numbers = opened.unary_stream("/test.Service/Numbers")(b"3")
        assert [await numbers.read() for _ in range(3)] == [b"0", b"1", b"2"]
        assert (await numbers.code(), await numbers.details()) == (Code.DATA_LOSS, "after three")
        first_record = json.loads((tmp_path / "audit" / "audit.jsonl").read_bytes().splitlines()[0])
        assert (first_record["request_id"], first_record["status"]) == ("abc", 200)
        assert first_record["call"].startswith("gRPC /test.Service/")


@in_loop
async def test_a_deadline_reaches_the_replica_and_a_client_that_leaves_ends_the_call_there(tmp_path: Path) -> None:
    async with grpc_replica() as one, serving(tmp_path, one, timeout_s=600.0) as (_, port), channel(port) as opened:
        await unary(opened)(b"")  # all connections are made by then
        assert (await status(unary(opened, "Slow")(b"", timeout=6.0)))[0] is Code.DEADLINE_EXCEEDED
        assert one.calls[1]["left"] < 10
        await eventually_async(one.cancelled.is_set, "ended there")
        one.cancelled.clear()
        call = unary(opened, "Slow")(b"")
        await eventually_async(lambda: len(one.calls) == 3, "arrived")
        assert 10 < one.calls[2]["left"] < 610  # the route's own limit where the client has none
        call.cancel()
        await eventually_async(one.cancelled.is_set, "ended there too")


@in_loop
async def test_each_call_is_chosen_for_by_weight_tag_and_load(tmp_path: Path) -> None:
    async with grpc_replica("old") as old, grpc_replica("new") as new, linked(tmp_path) as made:
        port = free_port()
        backends = (
            Backend("iris-1", "iris", 80, (old.config,)),
            Backend("iris-2", "iris", 20, (new.config,), tags=("canary",)),
        )
        await made.publish(route(port, backends=backends))
        async with channel(port) as opened:
            answers = Counter([(await unary(opened)(b"")).decode() for _ in range(100)])
            assert 10 <= answers["new:"] <= 30
            call = unary(opened)(b"")
            answered = (await call).decode()
            assert dict(await call.initial_metadata())["x-pilotlight-revision"] == f"iris-{1 + (answered == 'new:')}"
            for tag in ("canary", "iris-2"):
                assert await unary(opened)(b"", metadata=(("x-pilotlight-tag", tag),)) == b"new:"
            assert (await status(unary(opened)(b"", metadata=(("x-pilotlight-tag", "no"),))))[0] is Code.NOT_FOUND


@in_loop
async def test_a_call_is_held_until_a_replica_comes_and_says_so(tmp_path: Path) -> None:
    async with grpc_replica() as one, serving(tmp_path) as (made, port), channel(port) as opened:
        call = unary(opened)(b"x")
        assert (await made.hears(Wake)).revision == "iris-1"
        await made.publish(route(port, one.config))
        assert await call == b"r1:x"
        assert int(dict(await call.initial_metadata())["x-pilotlight-cold-start"]) >= 0
        await made.counted(1)


@in_loop
async def test_a_held_call_ends_with_its_deadline_or_the_reason_why_none_comes(tmp_path: Path) -> None:
    async with serving(tmp_path) as (made, port), channel(port) as opened:
        assert (await status(unary(opened)(b"", timeout=0.1)))[0] is Code.DEADLINE_EXCEEDED
        broken = Backend("iris-1", "iris", 100, unavailable="the model cannot be loaded")
        await made.publish(route(port, backends=(broken,)))
        assert await status(unary(opened)(b"")) == (Code.UNAVAILABLE, "the model cannot be loaded")


@in_loop
async def test_concurrency_is_a_limit_of_calls(tmp_path: Path) -> None:
    async with grpc_replica() as one, serving(tmp_path, one, concurrency=1) as (_, port), channel(port) as opened:
        calls = [unary(opened, "Slow")(b"%d" % number) for number in range(3)]
        await eventually_async(lambda: one.calls, "the first")
        assert len(one.calls) == 1
        one.open.set()
        assert [await call for call in calls] == [b"0", b"1", b"2"]


@in_loop
async def test_a_replica_that_cannot_be_reached_is_told_and_another_one_answers(tmp_path: Path) -> None:
    gone = Replica("gone", 1, grpc_port=free_port())
    async with grpc_replica() as one, linked(tmp_path) as made:
        port = free_port()
        await made.publish(route(port, gone, one.config))
        async with channel(port) as opened:
            assert {await unary(opened)(b"%d" % number) for number in range(6)} == {b"r1:%d" % n for n in range(6)}
        assert (await made.hears(Unreachable)).replica == "gone"


@in_loop
async def test_a_replica_that_dies_during_a_call_gets_it_no_second_time(tmp_path: Path) -> None:
    async with grpc_replica("dying") as dying, grpc_replica("other") as other, linked(tmp_path) as made:
        port = free_port()
        await made.publish(route(port, dying.config))
        async with channel(port) as opened:
            call = unary(opened, "Slow")(b"")
            await eventually_async(lambda: dying.calls, "arrived")
            await made.publish(route(port, other.config))
            await dying.kill()
            assert await call.code() is not Code.OK
            assert not other.calls
            assert await unary(opened)(b"") == b"other:"


@in_loop
async def test_access_and_rate_limits_hold_for_calls(tmp_path: Path) -> None:
    access = Access((hashlib.sha256(b"ada").hexdigest(),))
    async with grpc_replica() as one, linked(tmp_path) as made:
        port = free_port()
        await made.publish(route(port, one.config, access=access, rate=Rate(2, 3600.0)))
        async with channel(port) as opened:
            code, details = await status(unary(opened)(b""))
            assert (code, "needs a token" in details) == (Code.UNAUTHENTICATED, True)
            mine = (("authorization", "Bearer ada"),)
            assert (await status(unary(opened)(b"", metadata=(("authorization", "Bearer eve"),))))[
                0
            ] is Code.UNAUTHENTICATED
            assert [await unary(opened)(b"", metadata=mine) for _ in range(2)] == [b"r1:"] * 2
            limited = unary(opened)(b"", metadata=mine)
            assert await limited.code() is Code.RESOURCE_EXHAUSTED
            assert int(dict(await limited.trailing_metadata())["retry-after"]) > 0
            await made.publish(route(port, one.config, access=access, quota=TokenQuota(per_day=20)))
            assert (await status(unary(opened)(b"", metadata=mine)))[0] is Code.UNIMPLEMENTED, "it counts no tokens"
        assert len(one.calls) == 2


@in_loop
async def test_a_web_page_of_another_site_is_refused_on_loopback(tmp_path: Path) -> None:
    async with grpc_replica() as one, serving(tmp_path, one, hosts=("iris.example",)) as (_, port):
        async with channel(port) as opened:
            for origin in ("http://evil.example", "null", "https://localhost.evil.example"):
                code, details = await status(unary(opened)(b"", metadata=(("origin", origin),)))
                assert (code, "--allowed-hosts" in details) == (Code.PERMISSION_DENIED, True), origin
            for origin in ("http://localhost:3000", "https://iris.example"):
                assert await unary(opened)(b"", metadata=(("origin", origin),)) == b"r1:"
        for host in ("localhost", "127.0.0.1"):
            async with channel(port, host) as opened:
                assert await unary(opened)(b"") == b"r1:"
        assert len(one.calls) == 4


@in_loop
async def test_calls_in_flight_are_finished_when_the_gateway_stops(tmp_path: Path) -> None:
    async with grpc_replica() as one:
        port, made = free_port(), new_link(tmp_path)
        await made.link.start(["127.0.0.1:0/http"])
        await made.publish(route(port, one.config))
        async with channel(port) as opened:
            call = unary(opened, "Slow")(b"x")
            await eventually_async(lambda: one.calls, "arrived")
            closing = asyncio.create_task(made.link.close(stop_gateway=True, drain_s=20.0))
            await eventually_async(lambda: not made.home.gateway_socket.exists(), "stopping")
            one.open.set()
            assert await call == b"x"
        await closing


@pytest.mark.parametrize(
    ("peer", "address"),
    [("ipv4:127.0.0.1:5000", "127.0.0.1"), ("ipv6:%5B::1%5D:5000", "::1"), ("ipv6:[2001:db8::1]:5", "2001:db8::1"),
     ("unix:/tmp/x", "unix:/tmp/x")],
)  # fmt: skip
def test_a_peer_is_known_by_its_address(peer: str, address: str) -> None:
    assert peer_address(peer) == address


def test_what_belongs_to_one_hop_is_not_passed_on() -> None:
    said = (("user-agent", "x"), ("grpc-timeout", "1S"), ("te", "trailers"), ("a", "1"), ("a", "2"), ("b-bin", b"\0"))
    more = (("content-length", "9"), ("x-forwarded-for", "192.0.2.1"), ("x-request-id", "7"))
    told = forwarded_metadata((*said, *more), "127.0.0.1")
    assert told == (
        ("a", "1"), ("a", "2"), ("b-bin", b"\0"), ("x-request-id", "7"), ("x-forwarded-for", "192.0.2.1, 127.0.0.1"),
    )  # fmt: skip
    assert dict(forwarded_metadata((), "127.0.0.1"))["x-request-id"]
    assert to_headers(said)["a"] == "1, 2"
