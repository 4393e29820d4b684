"""The scheduler with real threads and small instances that the test steers."""

import asyncio
import logging
import threading
from collections.abc import Sequence

import pytest
from tests.eventually import eventually_async
from tests.predictor.scheduling.instances import PATIENCE_S, Asked, Echo, Exiting, scheduler

from pilotlight_predictor.backends.base import Answer
from pilotlight_predictor.core.requests import InferRequest, Outputs
from pilotlight_predictor.errors import BackendFailed, Cancelled, NotReady, QueueFull, QueueTimeout
from pilotlight_predictor.repository.model_config import DynamicBatching, QueuePolicy


def test_two_instances_run_at_the_same_time() -> None:
    async def scene() -> None:
        gate = threading.Event()
        left, right = Echo(gate), Echo(gate)
        ask = Asked(scheduler(left, right))
        ask("a")
        ask("b")
        ask("c")
        await eventually_async(lambda: left.entered.is_set() and right.entered.is_set())
        assert (ask.scheduler.executing, ask.scheduler.pending) == (2, 1)
        gate.set()
        await ask.all()
        await ask.scheduler.close()

    asyncio.run(scene())


def test_what_waits_for_a_busy_instance_grows_into_one_batch() -> None:
    async def scene() -> None:
        gate = threading.Event()
        echo = Echo(gate)
        ask = Asked(scheduler(echo, max_rows=8))
        ask("first", 0)
        await eventually_async(echo.entered.is_set)
        for number in range(1, 6):
            ask(f"waits {number}", number)
        gate.set()
        await ask.all()
        assert echo.executed == [1, 5]
        assert [ask.values(f"waits {number}") for number in range(1, 6)] == [[1], [2], [3], [4], [5]]
        assert ask.scheduler.stats.execution_count == 2
        assert ask.scheduler.stats.inference_count == 6

    asyncio.run(scene())


def test_an_instance_begins_the_next_batch_before_the_answers_to_the_last_are_written() -> None:
    async def scene() -> None:
        gate = threading.Event()
        echo = Echo(gate)
        ask = Asked(scheduler(echo))
        first = ask("first")
        await eventually_async(echo.entered.is_set)
        echo.entered.clear()
        ask("second")
        begun: list[bool] = []
        written = first.done

        def done(answer: Outputs | Exception) -> None:
            begun.append(echo.entered.wait(PATIENCE_S))  # the loop is busy writing: nobody else could begin it
            written(answer)

        first.done = done
        gate.set()
        await ask.all()
        assert begun == [True]

    asyncio.run(scene())


def test_requests_of_one_turn_of_the_loop_share_a_batch_up_to_the_largest() -> None:
    async def scene() -> None:
        echo = Echo(quick=True)
        ask = Asked(scheduler(echo, max_rows=4, trial_ns=1))
        for number in range(6):
            ask(str(number))
        await ask.all()
        assert echo.executed == [4, 2]

    asyncio.run(scene())


def test_a_lone_request_leaves_when_its_delay_has_passed() -> None:
    async def scene() -> None:
        ask = Asked(scheduler(Echo(), max_rows=8, delay_us=20_000))
        started = asyncio.get_running_loop().time()
        ask("alone")
        await ask.all()
        assert asyncio.get_running_loop().time() - started >= 0.02

    asyncio.run(scene())


def test_one_bad_request_does_not_fail_its_neighbours(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> Asked:
        gate = threading.Event()
        echo = Echo(gate)
        ask = Asked(scheduler(echo, max_rows=8))
        ask("first")
        await eventually_async(echo.entered.is_set)
        ask("good", 1)
        ask("bad", -1)
        ask("also good", 2)
        gate.set()
        await ask.all()
        assert echo.executed == [1, 3, 1, 1, 1]  # the worker tries each alone; the instance does not try as well
        return ask

    ask = asyncio.run(scene())
    assert (ask.values("good"), ask.values("also good")) == ([1], [2])
    assert isinstance(ask.answers["bad"], BackendFailed)
    stats = ask.scheduler.stats
    assert (stats.success_count, stats.failures["BACKEND"], stats.inference_count) == (3, 1, 3)


class Raising(Echo):
    """Raises out of execute for a batch that holds a negative number, as user code may."""

    def execute(self, batch: Sequence[InferRequest]) -> Sequence[Answer]:
        if any((request.inputs["x"].array < 0).any() for request in batch):
            raise ValueError("the secret of the model")
        return super().execute(batch)


def test_an_instance_that_raises_for_a_batch_runs_its_requests_alone() -> None:
    async def scene() -> None:
        ask = Asked(scheduler(Raising(quick=True), max_rows=8, trial_ns=1))
        ask("bad", -1)
        ask("good", 1)
        await ask.all()
        assert ask.values("good") == [1]
        assert isinstance(ask.answers["bad"], BackendFailed)

    asyncio.run(scene())


def test_what_a_model_raises_is_opaque_to_the_client_and_logged_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene() -> Asked:
        ask = Asked(scheduler(Raising()))
        ask("bad", -1)
        await ask.all()
        return ask

    with caplog.at_level(logging.ERROR):
        ask = asyncio.run(scene())
    assert "secret" not in str(ask.answers["bad"])
    assert "the secret of the model" in caplog.text
    assert "Traceback" in caplog.text


def test_a_client_who_cannot_take_the_answer_is_told_once_and_does_not_cost_its_neighbours_theirs() -> None:
    async def scene() -> None:
        ask = Asked(scheduler(Echo(), max_rows=8))
        broken = ask("broken")
        ask("fine", 2)
        told: list[object] = []

        def done(answer: object) -> None:
            told.append(answer)
            raise RuntimeError("cannot be taken")

        broken.done = done
        await eventually_async(lambda: "fine" in ask.answers)
        assert len(told) == 1

    asyncio.run(scene())


def test_user_code_that_exits_is_a_dead_model_that_takes_nothing_more() -> None:
    async def scene() -> None:
        gate = threading.Event()
        dying = Exiting(gate)
        ask = Asked(scheduler(dying))
        ask("last")
        await eventually_async(dying.entered.is_set)
        ask("waits")
        gate.set()
        await ask.all()
        assert isinstance(ask.answers["last"], BackendFailed)
        assert isinstance(ask.answers["waits"], NotReady)
        assert "SystemExit" in ask.scheduler.problem
        assert not ask.scheduler.alive
        with pytest.raises(NotReady, match="load it again"):
            ask("more")
        del ask.items["more"]
        assert len(dying.executed) == 1
        await ask.scheduler.close()

    asyncio.run(scene())


def test_with_one_instance_dead_the_other_goes_on_but_the_model_is_not_alive() -> None:
    async def scene() -> None:
        ask = Asked(scheduler(Exiting(), Echo()))
        ask("dies")
        await ask.all()
        for number in range(4):
            ask(str(number), number)
        await ask.all()
        assert [ask.values(str(number)) for number in range(4)] == [[0], [1], [2], [3]]
        assert not ask.scheduler.alive

    asyncio.run(scene())


def test_who_leaves_the_queue_frees_a_place_and_never_runs() -> None:
    async def scene() -> None:
        gate = threading.Event()
        echo = Echo(gate)
        ask = Asked(scheduler(echo, bound=1))
        ask("runs")
        await eventually_async(echo.entered.is_set)
        waiting = ask("leaves")
        with pytest.raises(QueueFull):
            ask("refused")
        del ask.items["refused"]
        ask.scheduler.cancel(waiting)
        assert isinstance(ask.answers["leaves"], Cancelled)
        ask("comes", 7)
        gate.set()
        await ask.all()
        assert ask.values("comes") == [7]
        assert echo.executed == [1, 1]
        assert ask.scheduler.stats.failures["CANCELED"] == 1

    asyncio.run(scene())


def test_a_queue_timeout_is_answered_while_the_instance_is_still_busy() -> None:
    async def scene() -> None:
        gate = threading.Event()
        echo = Echo(gate)
        ask = Asked(scheduler(echo, batching=DynamicBatching()))
        ask("runs")
        await eventually_async(echo.entered.is_set)
        ask("expires 1", timeout_us=20_000)
        ask("expires 2", timeout_us=20_000)
        await eventually_async(lambda: len(ask.answers) == 2)
        assert {type(answer) for answer in ask.answers.values()} == {QueueTimeout}
        assert ask.scheduler.stats.failures["REJECTED"] == 2
        gate.set()
        await ask.all()
        assert echo.executed == [1]

    asyncio.run(scene())


def test_a_queue_timeout_shorter_than_the_batching_delay_is_kept() -> None:
    async def scene() -> None:
        batching = DynamicBatching(default_queue_policy=QueuePolicy(default_timeout_us=20_000))
        ask = Asked(scheduler(Echo(), max_rows=8, delay_us=60_000_000, batching=batching))
        ask("expires")
        await ask.all()
        assert isinstance(ask.answers["expires"], QueueTimeout)

    asyncio.run(scene())


def test_answers_keep_their_order_over_several_instances() -> None:
    async def scene() -> None:
        slow = threading.Event()
        ask = Asked(scheduler(Echo(slow), Echo(), preserve_ordering=True))
        ask("slow")
        for number in range(5):
            ask(str(number))
        await eventually_async(lambda: ask.scheduler.executing == 1 and not ask.scheduler.pending)
        assert ask.order == []
        slow.set()
        await ask.all()
        assert ask.order == ["slow", "0", "1", "2", "3", "4"]

    asyncio.run(scene())


def test_the_cancelled_and_the_expired_do_not_hold_the_order_up() -> None:
    async def scene() -> None:
        gate = threading.Event()
        echo = Echo(gate)
        ask = Asked(scheduler(echo, batching=DynamicBatching(), preserve_ordering=True))
        ask("runs")
        await eventually_async(echo.entered.is_set)
        leaves = ask("leaves")
        ask("expires", timeout_us=20_000)
        ask.scheduler.cancel(leaves)
        await eventually_async(lambda: not ask.scheduler.pending)
        gate.set()
        ask("follows")
        await ask.all()
        assert ask.order == ["leaves", "runs", "expires", "follows"]

    asyncio.run(scene())


def test_closing_finishes_what_waits_and_frees_the_instance_in_its_own_thread() -> None:
    async def scene() -> None:
        gate = threading.Event()
        echo = Echo(gate)
        ask = Asked(scheduler(echo))
        ask("runs")
        await eventually_async(echo.entered.is_set)
        ask("waits", 5)
        closing = asyncio.ensure_future(ask.scheduler.close())
        await asyncio.sleep(0)
        assert not closing.done()
        gate.set()
        await closing
        assert ask.values("waits") == [5]
        assert echo.closed_in == "pilotlight-instance"
        with pytest.raises(NotReady, match="is unloaded"):
            ask("late")

    asyncio.run(scene())


def test_closing_does_not_wait_for_a_batch_to_fill() -> None:
    async def scene() -> None:
        ask = Asked(scheduler(Echo(), max_rows=8, delay_us=600_000_000))
        ask("waits for company")
        await asyncio.sleep(0)
        await asyncio.wait_for(ask.scheduler.close(), PATIENCE_S)
        assert ask.values("waits for company") == [1]

    asyncio.run(scene())


def test_closing_ends_when_the_last_in_the_queue_leaves() -> None:
    async def scene() -> None:
        gate = threading.Event()
        echo = Echo(gate)
        ask = Asked(scheduler(echo))
        ask("runs")
        await eventually_async(echo.entered.is_set)
        waiting = ask("leaves")
        closing = asyncio.ensure_future(ask.scheduler.close())
        gate.set()
        await asyncio.sleep(0)
        ask.scheduler.cancel(waiting)
        await asyncio.wait_for(closing, PATIENCE_S)

    asyncio.run(scene())


def test_a_flood_on_one_model_leaves_another_its_turn() -> None:
    """Both run on the loop: between two batches of the flooded model the other one gets its turn."""

    async def scene() -> None:
        flooded, other = Echo(quick=True), Echo(quick=True)
        flood = Asked(scheduler(flooded, max_rows=4, trial_ns=1))
        ask = Asked(scheduler(other, trial_ns=1))
        for number in range(400):
            flood(str(number))
        before: list[int] = []
        ask("one").done = lambda answer: before.append(len(flooded.executed))
        await flood.all()
        assert before[0] <= 2, "of 100 batches"
        assert len(flooded.executed) == 100

    asyncio.run(scene())


def test_an_instance_that_hangs_is_given_up_and_the_other_serves() -> None:
    async def scene() -> None:
        gate = threading.Event()
        stuck = Echo(gate)
        ask = Asked(scheduler(stuck, Echo()))
        ask("r-1")
        await eventually_async(stuck.entered.is_set)
        assert [ask.scheduler.give_up_hung(2) for _ in range(2)] == ["", ""]
        assert "(requests r-1)" in ask.scheduler.give_up_hung(2)
        assert isinstance(ask.answers["r-1"], BackendFailed)
        assert (ask.scheduler.alive, ask.scheduler.executing) == (False, 0)
        ask("r-2", 5.0)
        await ask.all()
        assert ask.values("r-2") == [5.0]
        assert ask.scheduler.give_up_hung(0) == ""
        await ask.scheduler.close()  # without waiting for it
        gate.set()  # what it answers now is dropped

    asyncio.run(scene())


def test_executions_that_follow_each_other_are_no_hang() -> None:
    async def scene() -> None:
        ask = Asked(scheduler(Echo()))
        for number in range(5):
            ask(str(number))
            await ask.all()
            assert ask.scheduler.give_up_hung(1) == ""
        assert ask.scheduler.alive

    asyncio.run(scene())
