"""A worker that has gone, or says nothing, keeps nobody waiting who asks all of them."""

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pilotlight_predictor.config import Settings
from pilotlight_predictor.workers import supervisor, worker_handle
from pilotlight_predictor.workers import worker as workers_worker
from pilotlight_predictor.workers.parent_channel import Frame, WorkerResponse, encode_frame, read_frame
from pilotlight_predictor.workers.supervisor import WorkerSupervisor
from pilotlight_predictor.workers.worker_handle import WorkerHandle

HEAD = {"kind": "ask", "id": 7, "how": "all", "method": "POST", "path": "/v2/logging", "query": "", "headers": {}}
CALL = Frame(HEAD)


class Worker:
    """The other end of a parent's link, played by hand."""

    async def connect(self, number: int) -> None:
        ours, theirs = socket.socketpair()
        heard, writer = await asyncio.open_unix_connection(sock=ours)
        self.reader, self.writer = await asyncio.open_unix_connection(sock=theirs)
        self.member = WorkerHandle(number, None, writer)  # type: ignore[arg-type]
        self.member.joined = True
        self.listening = asyncio.create_task(self.member.listen(heard, lambda *_: None))

    async def frame(self) -> Frame:
        frame = await asyncio.wait_for(read_frame(self.reader), 60)
        assert frame is not None
        return frame

    async def answer(self) -> None:
        asked = await self.frame()
        self.writer.write(encode_frame(WorkerResponse(200, b"{}").frame("answer", asked.head["id"])))

    async def leave(self) -> None:
        self.writer.close()
        await asyncio.wait_for(self.listening, 60)


@asynccontextmanager
async def workers(number: int) -> AsyncIterator[list[Worker]]:
    made = [Worker() for _ in range(number)]
    for place, worker in enumerate(made):
        await worker.connect(place)
    try:
        yield made
    finally:
        for worker in made:
            await worker.leave()


def test_who_has_gone_since_it_was_chosen_is_not_waited_for() -> None:
    async def scene() -> None:
        async with workers(1) as (one,):
            await one.leave()
            assert await asyncio.wait_for(one.member.request(CALL), 60) is None

    asyncio.run(scene())


def test_who_goes_over_a_call_is_not_waited_for_either() -> None:
    async def scene() -> None:
        async with workers(1) as (one,):
            asking = asyncio.ensure_future(one.member.request(CALL))
            await one.frame()
            await one.leave()
            assert await asyncio.wait_for(asking, 60) is None

    asyncio.run(scene())


@pytest.mark.parametrize(("silent", "status"), [(False, 200), (True, 503)])
def test_what_must_hold_in_all_did_not_where_one_is_silent(
    monkeypatch: pytest.MonkeyPatch, silent: bool, status: int
) -> None:
    monkeypatch.setattr(worker_handle, "ANSWER_S", 1.0 if silent else 60.0)

    async def scene() -> None:
        async with workers(2) as (first, second):
            parent = WorkerSupervisor(Settings(), (), [], None, None)
            parent._workers = {0: first.member, 1: second.member}
            asking = asyncio.create_task(parent._fan_out(first.member, CALL))
            await first.answer()
            if not silent:
                await second.answer()
            told = await first.frame()
            await asking
            assert (told.kind, told.head["id"], told.head["status"]) == ("answered", 7, status)

    asyncio.run(scene())


def test_workers_that_leave_together_are_given_nothing_of_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither would take it any more, and the socket that one let go of had nobody."""
    monkeypatch.setattr(supervisor, "TOGETHER_S", 2.0)  # so that a busy machine hears of both within it

    async def scene() -> None:
        async with workers(2) as (first, second):
            parent = WorkerSupervisor(Settings(), (), [None, None], None, None)  # type: ignore[list-item]
            parent._workers = {0: first.member, 1: second.member}
            for worker in (first, second):
                worker.member.ready = True
            parent._assign_sockets()
            for place, worker in enumerate((first, second)):
                assert (await worker.frame()).head["sockets"] == [place]
            for worker in (first, second):
                parent._handle_frame(worker.member, Frame({"kind": "leaving"}))
                await asyncio.sleep(0.02)
            await asyncio.sleep(2.5)
            for worker in (first, second):
                worker.member.send_message("stop")
                assert (await worker.frame()).kind == "stop"

    asyncio.run(scene())


def test_one_that_cannot_listen_says_so_and_tries_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(workers_worker, "RETRY_S", 0.01)
    told: list[int] = []

    class FakeHttpServer:
        refusals = 2

        async def listen(self, _: object) -> None:
            if self.refusals:
                self.refusals -= 1
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    class Link:
        def send_message(self, _: str, order: int) -> None:
            told.append(order)

    async def scene() -> None:
        one, http_server = workers_worker.WorkerProcess(0, None, None, [None]), FakeHttpServer()  # type: ignore[arg-type, list-item]
        one._channel = Link()  # type: ignore[assignment]
        following = asyncio.create_task(one._apply_orders(http_server))  # type: ignore[arg-type]
        one._listen(Frame({"kind": "listen", "order": 4, "sockets": [0]}))
        async with asyncio.timeout(60):
            while not told:
                await asyncio.sleep(0.01)
        following.cancel()
        assert (told, http_server.refusals) == ([4], 0)

    asyncio.run(scene())
    assert caplog.text.count("cannot listen: Too many open files") == 2
