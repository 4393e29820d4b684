"""The parent of the workers: binds the ports, starts the workers, asks all of them, replaces the dead, ends them.

It holds every listening socket for as long as it lives, so that a connection that waits for a worker which dies is
accepted by another. It serves nothing itself and imports nothing that models need.
"""

import asyncio
import signal
import socket
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Final

from pilotlight_predictor.app import bind
from pilotlight_predictor.logs import configure, log
from pilotlight_predictor.settings import Settings
from pilotlight_predictor.workers.control import Control
from pilotlight_predictor.workers.decisions import wait_before_restart
from pilotlight_predictor.workers.frames import Answer, Frame
from pilotlight_predictor.workers.member import Member, ask_all, start
from pilotlight_predictor.workers.merge import SILENT, merge, worst
from pilotlight_predictor.workers.merge_metrics import EOF, left_behind
from pilotlight_predictor.workers.sharing import PATIENCE_S, share_out, standings

BEYOND_S: Final = 10.0  # after the bounds of a drain and for freeing models
HURRY_S: Final = 2.0
TOGETHER_S: Final = 0.03  # for others that leave at the same moment, and shall not be given what this one had


def run(settings: Settings, argv: Sequence[str]) -> int:
    """Blocks until a signal, or a start that failed, has ended all workers; the exit code."""
    told = settings.observability
    configure(told.log_level.upper(), told.log_format)  # type: ignore[arg-type]
    for warning in settings.warnings:
        log("setting", warning, level="WARNING")
    server = settings.server
    try:
        http = bind_several(server.host, server.http_port, server.workers)
        metrics = bind(server.metrics_host or server.host, server.metrics_port) if server.metrics_port >= 0 else None
    except OSError as error:
        log("failed", f"cannot listen on {error}", level="ERROR")
        return 1
    ports = {"http_port": http[0].getsockname()[1], "metrics_port": metrics.getsockname()[1] if metrics else -1}
    log("listening", workers=server.workers, host=server.host, **ports)
    return asyncio.run(Parent(settings, argv, http, metrics).run())


def bind_several(host: str, port: int, sockets: int) -> list[socket.socket]:
    """Sockets of one port, over which the kernel spreads connections. A port that another server has is refused."""
    with bind(host, port) as alone:
        port = alone.getsockname()[1]
    return [bind(host, port, shared=True) for _ in range(sockets)]


class Parent:
    def __init__(
        self, settings: Settings, argv: Sequence[str], http: list[socket.socket], metrics: socket.socket | None
    ) -> None:
        self._settings = settings
        self._argv = argv
        self._http = http
        self._metrics = metrics
        self._members: dict[int, Member] = {}
        self._restarts = [0] * len(http)
        self._departed = ""  # what workers that are gone had counted
        self._control = Control()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._served = False  # whether any worker has ever been ready
        self._waiting = False  # whether one that is ready waits for another to let go of a socket
        self._code = 0

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        lives = [loop.create_task(self._keep(number)) for number in range(len(self._http))]
        await self._stop.wait()
        # Whoever is ready must not wait for a socket that nobody would then accept from; who leaves keeps what it has.
        staying = {number: member for number, member in self._members.items() if not member.leaving}
        share_out(len(self._http), standings(staying), monotonic(), wait=False)
        self._tell_all("stop")
        await self._ended(lives)
        log("stopped", "all workers have ended", code=self._code)
        return self._code

    def _signalled(self) -> None:
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    def _tell_all(self, kind: str) -> None:
        for member in self._members.values():
            member.tell(kind)

    async def _ended(self, lives: "Sequence[asyncio.Task[None]]") -> None:
        """Waits for all within the bounds of a drain; a second signal, or the bound, ends who is left."""
        server = self._settings.server
        all_ended = asyncio.gather(*lives)
        hurry = asyncio.ensure_future(self._hurry.wait())
        ways: list[asyncio.Future[Any]] = [all_ended, hurry]
        bound = server.drain_delay_s + server.exit_timeout_s + BEYOND_S
        await asyncio.wait(ways, timeout=bound, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if all_ended.done():
            return
        self._code = 1
        self._tell_all("hurry")
        await asyncio.wait([all_ended], timeout=HURRY_S)
        for member in self._members.values():
            member.kill()
        await all_ended

    async def _keep(self, number: int) -> None:
        """One worker after the other at this place, until all stop."""
        deaths = 0
        while not self._stop.is_set():
            began = monotonic()
            code = await self._live(number)
            if self._stop.is_set():
                self._code = self._code or int(code != 0)
            elif not self._served:
                self._give_up(number, code)
            else:
                deaths, wait_s = wait_before_restart(deaths, monotonic() - began)
                message = f"worker {number} ended with {code}; another one starts in {wait_s:g} s"
                log("worker.died", message, level="ERROR", worker=number, code=code, deaths=deaths)
                self._restarts[number] += 1
                await self._stopped_within(wait_s)

    def _give_up(self, number: int, code: int) -> None:
        """Before anything was served a death is the start's failure, as it is of a server without workers."""
        log("failed", f"worker {number} ended with {code} before any was ready", level="ERROR", worker=number)
        self._code = code if code > 0 else 1
        self._stop.set()

    async def _stopped_within(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)

    async def _live(self, number: int) -> int:
        """A worker from start to end; its exit code, negative for a signal."""
        try:
            member, reader = await start(number, self._argv, self._metrics, self._http)
        except OSError as error:
            log("failed", f"worker {number} cannot be started: {error.strerror}", level="ERROR", worker=number)
            return 1
        self._members[number] = member
        self._share()
        if self._stop.is_set():  # it was being started when all were told
            member.tell("stop")
        await member.listen(reader, self._hear)
        self._depart(member)
        self._share()
        code = await member.process.wait()
        del self._members[number]
        self._share()
        return code

    def _depart(self, member: Member) -> None:
        """With the link, and not only with the process: from here on no scrape asks it."""
        if member.scrape:
            self._departed = left_behind([self._departed, member.scrape])

    def _share(self) -> None:
        """Who accepts from which sockets, told to all; while stopping everybody keeps what it has."""
        if self._stop.is_set():
            return
        self._waiting = share_out(len(self._http), standings(self._members), monotonic())
        if self._waiting:
            asyncio.get_running_loop().call_later(PATIENCE_S, self._share)

    def _hear(self, member: Member, frame: Frame) -> None:
        if frame.kind == "ask":
            self._spawn(self._answer(member, frame))
        elif frame.kind == "joined":
            member.joined = True
        elif frame.kind == "listens":
            member.share.did(frame.head["order"])
            if self._waiting:
                self._share()
        elif frame.kind == "leaving":
            member.leaving = True
            asyncio.get_running_loop().call_later(TOGETHER_S, self._share)
        else:
            self._judged(member, frame.head["ready"])

    def _judged(self, member: Member, ready: bool) -> None:
        """A worker says that it is ready, or is so no more: then others have its socket until it is again."""
        member.well = ready
        if ready:
            self._spawn(self._admit(member))
        else:
            member.ready = False
            self._share()

    async def _admit(self, member: Member) -> None:
        """A worker that became ready takes connections once it serves what the others do."""
        others = [other for other in self._members.values() if other.ready]
        if self._settings.model.control_mode == "explicit" and not await self._control.catch_up(member, others):
            member.kill()
            return
        if not member.well:  # it changed its mind meanwhile
            return
        member.ready = self._served = True
        self._share()
        log("worker.ready", f"worker {member.number} takes connections", worker=member.number, pid=member.process.pid)

    async def _answer(self, asker: Member, call: Frame) -> None:
        how = call.head["how"]
        members = [member for _, member in sorted(self._members.items()) if member.joined]
        if how == "load":
            answer = await self._control.load(members, call)
        elif how == "unload":
            answer = await self._control.unload(members, call)
        elif how in {"park", "wake"}:
            answer = await self._control.move(members, call)
        else:
            answers = await ask_all(members, call)
            told = [answers.get(member.number, SILENT) for member in members if member.joined]
            answer = worst(told) if how == "all" else self._merged(how, members, answers)
        asker.send(answer.frame("answered", call.head["id"]))

    def _merged(self, how: str, members: Sequence[Member], answers: dict[int, Answer]) -> Answer:
        """A worker that is too busy to answer a scrape counts as it last did: a counter must not fall."""
        if how != "metrics":
            return merge(how, answers, roster=self._roster())
        for member in members:
            answer = answers.get(member.number)
            if not member.joined:  # it died over the call: what it had counted is with the departed
                answers.pop(member.number, None)
            elif answer is not None and answer.status == 200:
                member.scrape = answer.body.decode().removesuffix(f"{EOF}\n")
            elif answers and member.scrape:
                some = next(iter(answers.values()))
                answers[member.number] = some._replace(status=200, body=member.scrape.encode())
        return merge(how, answers, self._departed)

    def _roster(self) -> list[dict[str, Any]]:
        return [
            {"worker": number, "pid": member.process.pid, "restarts": self._restarts[number]}
            for number, member in sorted(self._members.items())
        ]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
