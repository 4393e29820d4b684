"""A model that answers in parts: order, ends, failures, cancellation, a reader that is slow."""

import asyncio
import threading

import pytest
from tests.eventually import eventually_async
from tests.predictor.models.bls.counting import Counts, Heard, number, number_in, request, served
from tests.predictor.scheduling.instances import PATIENCE_S, Echo, scheduler
from tests.predictor.scheduling.instances import Asked as AskedOf

from pilotlight_predictor.backends.base import DecoupledRequest
from pilotlight_predictor.config import Limits
from pilotlight_predictor.core.requests import InferResponse
from pilotlight_predictor.errors import BackendFailed, BadRequest, Cancelled, DeadlineExceeded
from pilotlight_predictor.scheduling.streaming import MAX_BUFFERED, ResponseReader


def within(seconds: float) -> Limits:
    return Limits(1 << 20, seconds, None, None)


def test_parts_come_in_order_and_end_once() -> None:
    async def scene() -> None:
        heard = Heard()
        version = served(Counts())
        version.stream(request(200, id="a"), heard)
        await eventually_async(lambda: heard.ended)
        assert heard.numbers == list(range(200))
        last, final = heard.parts[-1]
        assert final
        assert isinstance(last, InferResponse)
        assert not last.outputs
        assert last.id == "a"
        assert version.stats.as_v2()["inference_stats"]["success"]["count"] == 1

    asyncio.run(scene())


def test_an_answer_may_be_the_last_itself() -> None:
    def last(asked: DecoupledRequest, i: int) -> None:
        asked.send({"i": number(7)}, final=True)

    async def scene() -> None:
        heard = Heard()
        served(Counts(last)).stream(request(3), heard)
        await eventually_async(lambda: heard.ended)
        assert [(number_in(result), final) for result, final in heard.parts] == [(7, True)]

    asyncio.run(scene())


def test_requests_interleave_and_one_instance_begins_the_next_while_answers_are_open() -> None:
    gate = threading.Event()

    def step(asked: DecoupledRequest, i: int) -> None:
        if asked.request.id == "slow":
            assert gate.wait(PATIENCE_S)

    async def scene() -> None:
        version, slow, quick = served(Counts(step)), Heard(), Heard()
        version.stream(request(2, id="slow"), slow)
        version.stream(request(2, id="quick"), quick)
        await eventually_async(lambda: quick.ended)
        assert not slow.parts
        gate.set()
        await eventually_async(lambda: slow.ended)
        assert slow.numbers == quick.numbers == [0, 1]

    asyncio.run(scene())


def test_a_failure_amid_the_answers_is_the_end_and_stays_opaque() -> None:
    def fail_at_two(_: DecoupledRequest, i: int) -> None:
        if i == 2:
            raise ValueError("secret")

    async def scene() -> None:
        heard = Heard()
        served(Counts(fail_at_two)).stream(request(5), heard)
        await eventually_async(lambda: heard.ended)
        assert heard.numbers == [0, 1]
        assert isinstance(heard.parts[-1][0], BackendFailed)
        assert "secret" not in str(heard.parts[-1][0])

    asyncio.run(scene())


def test_a_batch_that_cannot_begin_ends_its_requests() -> None:
    class Broken(Counts):
        def begin(self, batch: object) -> None:
            raise RuntimeError("no")

    async def scene() -> None:
        heard = Heard()
        served(Broken()).stream(request(1), heard)
        await eventually_async(lambda: heard.ended)
        assert isinstance(heard.parts[0][0], BackendFailed)

    asyncio.run(scene())


def test_a_client_that_leaves_is_told_to_the_model_and_hears_nothing_more() -> None:
    gate, begun = threading.Event(), threading.Event()

    def step(_: DecoupledRequest, i: int) -> None:
        if i == 1:
            begun.set()
            assert gate.wait(PATIENCE_S)

    async def scene() -> None:
        instance, heard = Counts(step), Heard()
        version = served(instance)
        ticket = version.stream(request(1000), heard)
        await eventually_async(lambda: heard.parts and begun.is_set())
        ticket.cancel()
        assert isinstance(heard.parts[-1][0], Cancelled)
        assert heard.ended
        gate.set()
        await asyncio.wait_for(version.executor.close(), PATIENCE_S)
        assert instance.sent == [0, 1]
        assert version.stats.failures["CANCELED"] == 1

    asyncio.run(scene())


def test_closing_waits_for_the_last_answer() -> None:
    gate = threading.Event()

    async def scene() -> None:
        instance, heard = Counts(lambda asked, i: gate.wait(PATIENCE_S) and None), Heard()
        version = served(instance)
        version.stream(request(3), heard)
        closing = asyncio.ensure_future(version.executor.close())
        await asyncio.wait({closing}, timeout=0.05)
        assert not closing.done()
        assert not instance.closed
        gate.set()
        await asyncio.wait_for(closing, PATIENCE_S)
        assert instance.closed
        assert heard.numbers == [0, 1, 2]

    asyncio.run(scene())


def test_a_slow_reader_holds_the_model_back_and_loses_nothing() -> None:
    async def scene() -> None:
        instance = Counts()
        version = served(instance)
        seen = []
        async with ResponseReader(version.stream, request(1000)) as answers:
            async for _, result, final in answers:
                if not final:
                    seen.append(number_in(result))
                if len(seen) == 1:
                    await eventually_async(lambda: len(instance.sent) >= MAX_BUFFERED)
                    await asyncio.sleep(0.02)
                    assert len(instance.sent) < 3 * MAX_BUFFERED
        assert seen == list(range(1000))

    asyncio.run(scene())


def test_an_end_waits_for_no_reader() -> None:
    ended = threading.Event()

    def fail_when_full(asked: DecoupledRequest, i: int) -> None:
        if asked.full:
            asked.send(RuntimeError("out of memory"))
            ended.set()

    async def scene() -> None:
        version = served(Counts(fail_when_full))
        async with ResponseReader(version.stream, request(1000)) as answers:
            await eventually_async(ended.is_set)
            told = [result async for _, result, _ in answers]
        assert [number_in(result) for result in told[:-1]] == list(range(len(told) - 1))
        assert isinstance(told[-1], BackendFailed)

    asyncio.run(scene())


def test_whoever_stops_reading_cancels() -> None:
    async def scene() -> None:
        instance = Counts()
        version = served(instance)
        async with ResponseReader(version.stream, request(100_000)) as answers:
            async for _ in answers:
                break
        await asyncio.wait_for(version.executor.close(), PATIENCE_S)
        assert len(instance.sent) < 1000

    asyncio.run(scene())


def test_the_time_limit_counts_to_the_first_answer_only() -> None:
    gate = threading.Event()

    async def scene() -> None:
        heard, late = Heard(), Heard()
        version = served(Counts(lambda asked, i: gate.wait(PATIENCE_S) and None if asked.request.id else None))
        version.stream(request(2, id="late"), late, within(0.05))
        version.stream(request(2), heard, within(PATIENCE_S))
        await eventually_async(lambda: late.ended and heard.ended)
        assert isinstance(late.parts[0][0], DeadlineExceeded)
        assert len(late.parts) == 1
        assert heard.numbers == [0, 1]
        gate.set()

    asyncio.run(scene())


def test_a_model_that_answers_once_learns_that_its_client_has_gone() -> None:
    gate = threading.Event()

    async def scene() -> None:
        instance = Echo(gate)
        runs = scheduler(instance)
        ask = AskedOf(runs)
        item = ask("a")
        await eventually_async(instance.entered.is_set)
        runs.cancel(item)
        assert item.request.cancelled
        gate.set()
        await ask.all()

    asyncio.run(scene())


@pytest.mark.parametrize("n", [0, 1, 2, 100])
def test_infer_gives_the_one_answer_or_says_how_to_ask(n: int) -> None:
    async def scene() -> None:
        got: list[InferResponse | Exception] = []
        served(Counts()).infer(request(n), got.append)
        await eventually_async(lambda: got)
        if n == 1:
            assert number_in(got[0]) == 0
        else:
            assert isinstance(got[0], BadRequest)
            assert "ModelStreamInfer or generate_stream" in str(got[0])

    asyncio.run(scene())
