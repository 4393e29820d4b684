"""A scheduler at rest: instances out of service, requests in line, and whoever ends the rest is told of the first."""

import asyncio
import threading

from tests.eventually import eventually_async
from tests.predictor.scheduling.instances import Asked, Echo, Exiting, scheduler

from pilotlight_predictor.errors import NotReady, QueueTimeout


def test_what_comes_during_a_rest_is_told_waits_and_is_answered_after_it() -> None:
    async def scene() -> None:
        echo = Echo(quick=True)
        ask, calls = Asked(scheduler(echo, max_rows=8, trial_ns=1)), []
        ask.scheduler.on_request = lambda: calls.append(ask.scheduler.pending)
        assert ask.scheduler.suspend()
        assert ask.scheduler.inline_call() is None
        ask("a")
        ask("b")
        await asyncio.sleep(0)
        assert (calls, echo.executed) == ([1, 2], [])
        ask.scheduler.resume()
        await ask.all()
        assert echo.executed == [2]

    asyncio.run(scene())


def test_one_that_has_something_to_do_does_not_rest() -> None:
    async def scene() -> None:
        gate = threading.Event()
        echo = Echo(gate)
        ask = Asked(scheduler(echo))
        ask("runs")
        await eventually_async(echo.entered.is_set)
        assert not ask.scheduler.suspend()
        gate.set()
        await ask.all()
        held = ask.scheduler.hold()
        assert not ask.scheduler.suspend()
        held.release()
        assert ask.scheduler.suspend()

    asyncio.run(scene())


def test_time_outs_hold_during_a_rest() -> None:
    async def scene() -> None:
        ask = Asked(scheduler(Echo()))
        assert ask.scheduler.suspend()
        ask("late", timeout_us=1000)
        await ask.all()
        assert isinstance(ask.answers["late"], QueueTimeout)

    asyncio.run(scene())


def test_those_turned_away_hear_why_and_the_next_waits_again() -> None:
    async def scene() -> None:
        ask = Asked(scheduler(Echo()))
        assert ask.scheduler.suspend()
        ask("first")
        ask.scheduler.reject_all(NotReady("no room"))
        assert str(ask.answers["first"]) == "no room"
        ask("second")
        ask.scheduler.resume()
        await ask.all()
        assert ask.values("second") == [1]

    asyncio.run(scene())


def test_one_at_rest_closes_and_frees_its_instances() -> None:
    async def scene() -> None:
        echo = Echo()
        resting = scheduler(echo)
        assert resting.suspend()
        await resting.close()
        assert echo.closed_in

    asyncio.run(scene())


def test_one_with_a_dead_instance_rests_and_resumes_with_those_that_live() -> None:
    async def scene() -> None:
        ask = Asked(scheduler(Exiting(), Echo()))
        ask("dies")
        await ask.all()
        assert ask.scheduler.suspend()
        ask.scheduler.resume()
        for name in ("one", "two", "three"):
            ask(name)
        await ask.all()
        assert [ask.values(name) for name in ("one", "two", "three")] == [[1]] * 3

    asyncio.run(scene())
