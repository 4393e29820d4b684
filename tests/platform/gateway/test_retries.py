"""A request is sent again when its replica cannot have received it, and never otherwise."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.eventually import eventually_async
from tests.platform.gateway.bed import (
    WAIT_S,
    Bed,
    Clock,
    Origin,
    Reader,
    Seen,
    Writer,
    answer,
    backend,
    error_of,
    play,
    read_answer,
    route,
)
from tests.ports import free_port

from pilotlight.gateway.control_link import Unreachable
from pilotlight.gateway.proxy.upstream import never_delivered
from pilotlight.gateway.routing_table import Backend, Replica
from pilotlight.wire import unix_socket

WARM = 30  # requests ahead of the one in question


def pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        return client, listener.accept()[0]


def ended(client: socket.socket) -> bool:
    """Whether the end that comes is an ordinary one, and no reset."""
    try:
        return client.recv(10) == b""
    except ConnectionError:
        return False


def warm(client: socket.socket, server: socket.socket) -> int:
    """Bytes that were sent. A connection that has gone to and fro for a while acknowledges with a delay."""
    for _ in range(WARM):
        client.sendall(b"x" * 100)
        server.sendall(server.recv(100))
        assert client.recv(100)
    return WARM * 100


@pytest.mark.parametrize("used", [False, True])
def test_a_connection_that_was_closed_before_the_request_came_has_not_delivered_it(used: bool) -> None:
    client, server = pair()
    with client:
        before = warm(client, server) if used else 0
        server.close()
        client.sendall(b"second")
        assert never_delivered(client, before, ended(client))


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("read", [100, 10, 0])
def test_a_request_that_was_read_or_lay_ready_to_be_read_may_have_been_acted_upon(read: int, used: bool) -> None:
    client, server = pair()
    with client:
        before = warm(client, server) if used else 0
        client.sendall(b"x" * 100)
        if read:
            server.recv(read)
        server.close()
        assert not never_delivered(client, before, ended(client))


def test_what_the_kernel_cannot_tell_is_not_repeated() -> None:
    with socket.socket(socket.AF_UNIX) as other:
        assert not never_delivered(other, 0, eof=True)


def test_a_replica_that_refuses_is_told_of_and_another_one_answers() -> None:
    async def case(bed: Bed) -> None:
        origin, dead = await bed.origin(), free_port()
        bed.publish(route("iris", backend("iris-1", dead, origin, hold_s=0.0)))  # to go elsewhere is not to wait
        for _ in range(6):
            assert (await bed.ask("POST", "/iris/x", b"body")).status == 200
        assert [seen.body for seen in origin.seen] == [b"body"] * 6
        assert bed.unreachable == [Unreachable(f"replica-{dead}", "no connection: ConnectionRefusedError")]

    play(case, clock=Clock())  # it stands still: one that refused is left alone for a second


def test_when_all_refuse_the_request_waits_for_the_next_table_in_its_old_place() -> None:
    async def case(bed: Bed) -> None:
        dead = free_port()
        bed.publish(route("iris", backend("iris-1", dead)))
        asked = []
        for number in range(3):
            asked.append(asyncio.ensure_future(bed.ask("POST", f"/iris/{number}", b"body")))
            await eventually_async(lambda: sum(client.request is not None for client in bed.plane.clients) > number)  # noqa: B023
        await eventually_async(lambda: bool(bed.wakes), "a wake, since nothing can be reached")
        origin = await bed.origin()
        bed.publish(route("iris", backend("iris-1", origin)))
        answers = await asyncio.gather(*asked)
        assert {answered.status for answered in answers} == {200}
        assert all("x-pilotlight-cold-start" not in answered.headers for answered in answers)  # there was a replica
        assert sorted(seen.path for seen in origin.seen) == ["/0", "/1", "/2"]

    play(case)


def test_a_replica_that_refused_is_tried_again_after_a_while() -> None:
    async def case(bed: Bed) -> None:
        origin, port = Origin(), free_port()
        bed.publish(route("iris", backend("iris-1", port)))
        asked = asyncio.ensure_future(bed.ask("GET", "/iris/x"))
        await eventually_async(lambda: bool(bed.unreachable))
        await origin.start(port)
        assert (await asked).status == 200
        await origin.stop()

    play(case)


def test_the_wait_after_refusals_has_an_end() -> None:
    async def case(bed: Bed) -> None:
        bed.publish(route("iris", backend("iris-1", free_port(), hold_s=0.05)))
        answered = await bed.ask("GET", "/iris/x")
        assert (answered.status, "retry-after" in answered.headers) == (503, True)

    play(case)


def test_a_replica_that_dies_at_its_work_is_not_replaced_by_another() -> None:
    async def case(bed: Bed) -> None:
        async def die(seen: Seen, reader: Reader, writer: Writer) -> None:
            writer.close()

        one, two = await bed.origin(die), await bed.origin(die)
        bed.publish(route("iris", backend("iris-1", one, two)))
        reader, writer = await bed.connect()
        for number in range(4):
            writer.write(b"POST /iris/x HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx")
            broken = await read_answer(reader)
            assert broken.status == 502
            assert "not retried" in error_of(broken)
            assert len(one.seen) + len(two.seen) == number + 1
        assert len(bed.unreachable) == 4
        report = bed.plane.report(bed.plane.clock()).backends[0]
        assert (report.requests, report.errors, report.lost) == (4, 4, 4)

    play(case)


def test_a_client_that_stalls_its_upload_is_not_a_request_that_the_replica_lost() -> None:
    async def case(bed: Bed) -> None:
        async def give_up(seen: Seen, reader: Reader, writer: Writer) -> None:
            await reader.readexactly(1)
            writer.close()

        origin = await bed.origin(give_up, whole=False)
        bed.publish(route("iris", backend("iris-1", origin)))
        reader, writer = await bed.connect()
        writer.write(b"POST /iris/x HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nx")
        assert (await read_answer(reader)).status == 502
        report = bed.plane.report(bed.plane.clock()).backends[0]
        assert (report.requests, report.errors, report.lost, report.in_flight) == (0, 0, 0, 0)
        assert not bed.unreachable
        assert not bed.plane._backends[("default", "iris"), "iris-1"].replicas[0].unhealthy_until

    play(case)


def test_a_replica_that_dies_with_many_requests_is_told_of_once() -> None:
    async def case(bed: Bed) -> None:
        many = 20
        origin = await bed.origin(lambda seen, reader, writer: asyncio.Event().wait())
        bed.publish(route("iris", backend("iris-1", origin)))
        asked = [asyncio.ensure_future(bed.ask("GET", "/iris/x")) for _ in range(many)]
        await eventually_async(lambda: len(origin.seen) == many)
        await origin.stop()
        assert [(await each).status for each in asked] == [502] * many
        assert len(bed.unreachable) == 1

    play(case, clock=Clock())  # one doubt, however long the ends take to be heard


def test_half_an_answer_is_broken_off_and_not_ended_well() -> None:
    async def case(bed: Bed) -> None:
        async def die(seen: Seen, reader: Reader, writer: Writer) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
            await writer.drain()
            writer.close()

        origin = await bed.origin(die)
        bed.publish(route("iris", backend("iris-1", origin)))
        reader, writer = await bed.connect()
        writer.write(b"GET /iris/x HTTP/1.1\r\nHost: a\r\n\r\n")
        with suppress(ConnectionResetError):
            assert len(await reader.read()) < 200
        assert len(origin.seen) == 1
        assert bed.unreachable

    play(case)


def test_a_kept_connection_whose_end_is_already_here_is_not_used() -> None:
    async def case(bed: Bed) -> None:
        origin = await bed.origin()
        bed.publish(route("iris", backend("iris-1", origin)))
        assert (await bed.ask("GET", "/iris/x")).status == 200
        (live,) = bed.plane._backends.values()
        assert len(live.replicas[0].idle) == 1
        origin.connections[0].close()
        await eventually_async(lambda: not live.replicas[0].idle, "the end noticed without a request")
        assert (await bed.ask("GET", "/iris/x")).status == 200
        assert bed.unreachable == []

    play(case)


RAW = b"POST /iris/x HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody"


@contextmanager
def listening(folder: Path | None) -> Iterator[tuple[socket.socket, Replica]]:
    """A replica on TCP, or on a unix socket in the folder."""
    if folder is None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            yield listener, Replica("one", listener.getsockname()[1])
    else:
        replica = Replica("one", 8080, f"unix:{folder}")
        with unix_socket.listen(folder / "8080", 10) as listener:
            yield listener, replica


async def warmed(bed: Bed, listener: socket.socket, replica: Replica) -> tuple[socket.socket, Reader, Writer]:
    """The replica's side of a connection that has served a while, and its client.

    Listener and connection are plain sockets: everything between two awaits happens at one moment.
    """
    loop = asyncio.get_running_loop()
    listener.setblocking(False)
    bed.publish(route("iris", Backend("iris-1", "iris", 100, (replica,))))
    reader, writer = await bed.connect()
    writer.write(RAW)
    first, _ = await loop.sock_accept(listener)
    first.setblocking(False)
    for number in range(WARM):
        if number:
            writer.write(RAW)
        await loop.sock_recv(first, 1000)
        await loop.sock_sendall(first, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        assert (await read_answer(reader)).status == 200
    return first, reader, writer


@pytest.mark.parametrize("length", [4, 1 << 20])
@pytest.mark.parametrize("kind", ["tcp", "unix", "unix that reads no more"])
def test_a_request_that_meets_a_closed_connection_before_the_loop_has_heard_of_it_is_sent_again(
    kind: str, length: int, tmp_path: Path
) -> None:
    body = b"body" * (length // 4)
    raw = RAW.replace(b"Length: 4\r\n\r\nbody", b"Length: %d\r\n\r\n%b" % (length, body))

    async def case(bed: Bed) -> None:
        loop = asyncio.get_running_loop()
        with listening(None if kind == "tcp" else tmp_path) as (listener, replica):
            first, reader, _ = await warmed(bed, listener, replica)
            (client,) = bed.plane.clients
            if kind.endswith("no more"):
                first.shutdown(socket.SHUT_RD)
            else:
                first.close()
            client.data_received(raw)  # in the same moment
            second, _ = await loop.sock_accept(listener)
            with second:
                received = b""
                while len(received.partition(b"\r\n\r\n")[2]) < length:
                    received += await loop.sock_recv(second, 1 << 20)
                assert received.partition(b"\r\n\r\n")[2] == body
                await loop.sock_sendall(second, b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nagain")
                assert (await read_answer(reader)).body == b"again"
            first.close()
            assert bed.unreachable == []

    play(case)


@pytest.mark.parametrize("unix", [False, True])
def test_a_replica_that_dies_with_some_of_the_request_unread_does_not_get_it_repeated(
    unix: bool, tmp_path: Path
) -> None:
    """The end is a reset then, which does not acknowledge what was read."""

    async def case(bed: Bed) -> None:
        loop = asyncio.get_running_loop()
        with listening(tmp_path if unix else None) as (listener, replica):
            first, reader, writer = await warmed(bed, listener, replica)
            writer.write(RAW)
            assert (await loop.sock_recv(first, 10)).startswith(b"POST")
            first.close()
            async with asyncio.timeout(WAIT_S):
                assert (await read_answer(reader)).status == 502
            assert len(bed.unreachable) == 1
            with pytest.raises(BlockingIOError):
                listener.accept()

    play(case)


def test_a_replica_missing_from_the_table_finishes_its_work_and_gets_no_more() -> None:
    async def case(bed: Bed) -> None:
        go = asyncio.Event()

        async def slow(seen: Seen, reader: Reader, writer: Writer) -> None:
            if seen.path == "/slow":
                await go.wait()
            await answer(writer, b"old")

        old, new = await bed.origin(slow), await bed.origin()
        bed.publish(route("iris", backend("iris-1", old)))
        slow_one = asyncio.ensure_future(bed.ask("GET", "/iris/slow"))
        await eventually_async(lambda: bool(old.seen))
        assert (await bed.ask("GET", "/iris/x")).body == b"old"
        bed.publish(route("iris", backend("iris-1", new)))
        for _ in range(3):
            assert (await bed.ask("GET", "/iris/x")).json() == {"path": "/x"}
        go.set()
        assert (await slow_one).body == b"old"
        assert len(old.seen) == 2
        await eventually_async(lambda: all(writer.is_closing() for writer in old.connections), "its connections closed")

    play(case)


def test_a_request_that_was_still_connecting_goes_elsewhere_when_its_replica_leaves_the_table() -> None:
    async def case(bed: Bed) -> None:
        old, new = await bed.origin(), await bed.origin()
        bed.publish(route("iris", backend("iris-1", old)))
        reader, writer = await bed.connect()
        writer.write(b"GET /iris/x HTTP/1.1\r\nHost: a\r\n\r\n")
        (live,) = bed.plane._backends.values()
        while not live.replicas[0]._connecting:
            await asyncio.sleep(0)
        bed.publish(route("iris", backend("iris-1", new)))
        assert (await read_answer(reader)).status == 200
        assert (len(old.seen), len(new.seen)) == (0, 1)

    play(case)


def test_a_replica_whose_socket_was_made_anew_is_reached_again(tmp_path: Path) -> None:
    """As by a tunnel that was opened again: the socket that the gateway holds refuses connections."""

    async def case(bed: Bed) -> None:
        loop = asyncio.get_running_loop()
        replica = Replica("one", 8080, f"unix:{tmp_path}")
        with unix_socket.listen(tmp_path / "8080", 10):
            bed.publish(route("iris", Backend("iris-1", "iris", 100, (replica,))))
        with unix_socket.listen(tmp_path / "8080", 10) as listener:
            listener.setblocking(False)
            _, writer = await bed.connect()
            writer.write(RAW)
            connection, _ = await loop.sock_accept(listener)
            assert await loop.sock_recv(connection, 1000)
            connection.close()

    play(case)
