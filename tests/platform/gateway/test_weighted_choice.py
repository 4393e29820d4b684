"""Which revision and which replica get a request, and how many one of them gets at a time."""

import asyncio
from collections import Counter

from tests.eventually import eventually_async
from tests.platform.gateway.bed import Bed, Reader, Seen, Writer, answer, backend, play, read_answer, route

from pilotlight.gateway.routing_table import SmoothWeightedRoundRobin


def test_turns_keep_every_share_exactly_and_never_in_bursts() -> None:
    turns = SmoothWeightedRoundRobin({"a": 80, "b": 20, "c": 0})
    chosen = [turns.next() for _ in range(1000)]
    assert Counter(chosen) == {"a": 800, "b": 200}
    assert all(Counter(chosen[at : at + 5])["b"] == 1 for at in range(0, 1000, 5))


def test_without_any_share_nobody_is_chosen() -> None:
    assert SmoothWeightedRoundRobin({"a": 0}).next() is None


def test_requests_are_split_by_weight() -> None:
    async def case(bed: Bed) -> None:
        old, new = await bed.origin(), await bed.origin()
        bed.publish(route("iris", backend("iris-1", old, weight=80), backend("iris-2", new, weight=20)))
        reader, writer = await bed.connect()
        named = []
        for number in range(200):
            if number == 3:  # turns go on over tables that change nothing
                bed.publish(route("iris", backend("iris-1", old, weight=80), backend("iris-2", new, weight=20)))
            writer.write(b"GET /iris/ HTTP/1.1\r\nHost: a\r\n\r\n")
            answer = await read_answer(reader)
            assert answer.status == 200
            named.append(answer.headers["x-pilotlight-revision"])
        assert (len(old.seen), len(new.seen)) == (160, 40)
        assert (named.count("iris-1"), named.count("iris-2")) == (160, 40)
        bed.publish(route("iris", backend("iris-1", old), backend("iris-2", new, weight=0, tags=("next",))))
        assert "x-pilotlight-revision" not in (await bed.ask("GET", "/iris/")).headers

    play(case)


def test_a_service_without_shares_says_so() -> None:
    async def case(bed: Bed) -> None:
        origin = await bed.origin()
        bed.publish(route("iris", backend("iris-1", origin, weight=0)))
        assert (await bed.ask("GET", "/iris/")).status == 503

    play(case)


def test_the_least_loaded_replica_is_asked_and_equals_take_turns() -> None:
    async def case(bed: Bed) -> None:
        go = asyncio.Event()

        async def slow(seen: Seen, reader: Reader, writer: Writer) -> None:
            if seen.path == "/slow":
                await go.wait()
            await answer(writer, b"")

        one, two = await bed.origin(slow), await bed.origin(slow)
        bed.publish(route("iris", backend("iris-1", one, two)))
        held = [asyncio.ensure_future(bed.ask("GET", "/iris/slow")) for _ in range(2)]
        await eventually_async(lambda: len(one.seen) + len(two.seen) == 2)
        assert (len(one.seen), len(two.seen)) == (1, 1)
        third = asyncio.ensure_future(bed.ask("GET", "/iris/slow"))
        await eventually_async(lambda: len(one.seen) + len(two.seen) == 3)
        busy, free = (one, two) if len(one.seen) == 2 else (two, one)
        for _ in range(5):
            before = len(free.seen)
            assert (await bed.ask("GET", "/iris/quick")).status == 200
            assert len(free.seen) == before + 1
        assert len(busy.seen) == 2
        go.set()
        await asyncio.gather(*held, third)
        for _ in range(10):
            await bed.ask("GET", "/iris/quick")
        assert len(busy.seen) == 2 + 5

    play(case)


def test_a_replica_never_has_more_than_its_concurrency_and_the_rest_comes_in_order() -> None:
    async def case(bed: Bed) -> None:
        go = asyncio.Semaphore(0)
        at_once = most = 0

        async def working(seen: Seen, reader: Reader, writer: Writer) -> None:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await go.acquire()
            at_once -= 1
            await answer(writer, b"")

        origin = await bed.origin(working)
        bed.publish(route("iris", backend("iris-1", origin, concurrency=2)))
        connections = [await bed.connect() for _ in range(20)]
        for number, (_, writer) in enumerate(connections):
            writer.write(f"GET /iris/{number} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            await eventually_async(lambda: sum(client.request is not None for client in bed.plane.clients) > number)  # noqa: B023
            await eventually_async(lambda: len(origin.seen) == min(number + 1, 2))  # noqa: B023
        report = bed.plane.report(bed.plane.clock()).backends[0]
        assert (report.waiting, report.in_flight) == (18, 2)
        for reader, _ in connections:
            go.release()
            answered = await read_answer(reader)
            assert answered.status == 200
            assert "x-pilotlight-cold-start" not in answered.headers  # a replica was there
        assert most == 2
        order = [int(seen.path[1:]) for seen in origin.seen]
        assert order == sorted(order)
        assert bed.wakes == []

    play(case)
