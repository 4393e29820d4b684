"""The conversation on WebSocket /predict/stream: each message is a body of /predict, each answer comes in order.

One task listens and puts requests into the model's queue, one speaks; so a client may send ahead. A slot is taken
before a message is read and given back when its answer is sent: with all of them taken, nothing is read, and the
client's own connection holds it back.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from time import monotonic, perf_counter
from typing import Final

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.admission import RateLimiter
from pilotlight_predictor.calls import Call, Reply, Session, json_reply
from pilotlight_predictor.dispatch import ErrorBody, error_reply
from pilotlight_predictor.errors import PredictorError, RateLimited
from pilotlight_predictor.routes.predict_run import NAME
from pilotlight_predictor.server import Server

AHEAD: Final = 16  # messages in work on one connection
NORMAL, INTERNAL = 1000, 1011
Begin = Callable[[Server, Call, ErrorBody], Awaitable[Reply] | None]


def error_frame(error: PredictorError) -> Reply:
    return json_reply({"error": str(error).encode("utf-8", "replace").decode()}, error.status)


class Message:
    """A message in work: its call, and the reply that will be sent when its turn comes.

    Its call knows the reply and not the message: a circle would keep up to 10 MB for each until a collection.
    """

    def __init__(self, session: Session, text: Buffer) -> None:
        asked = session.call
        self.reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.finish = partial(_settle, self.reply)
        self.call = Call(
            asked.method, asked.path, asked.query, asked.headers, text, asked.peer, self.finish, perf_counter()
        )  # fmt: skip
        self.later: asyncio.Task[None] | None = None

    def abandon(self) -> None:
        self.call.abandon()
        if self.later is not None:
            self.later.cancel()


def _settle(promised: asyncio.Future[Reply], reply: Reply) -> None:
    if not promised.done():
        promised.set_result(reply)


class Conversation:
    def __init__(self, server: Server, session: Session, begin: Begin) -> None:
        self._server, self._session, self._begin = server, session, begin
        self._idle_s = server.settings.performance.stream_idle_timeout_s
        rate = server.predict_limits.messages_per_second
        self._rate, self._limiter = rate, RateLimiter(rate, 1.0) if rate else None
        self._slots = asyncio.Semaphore(AHEAD)
        self._waiting: asyncio.Queue[Message | None] = asyncio.Queue()  # no longer than there are slots
        self._messages: set[Message] = set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        listening, speaking = loop.create_task(self._listen()), loop.create_task(self._speak())
        try:
            await asyncio.wait({listening, speaking}, return_when=asyncio.FIRST_COMPLETED)
            if listening.done():
                listening.result()
                await speaking
            else:
                speaking.result()
        finally:
            for task in (listening, speaking):
                task.cancel()
            for message in self._messages:
                message.abandon()

    async def _listen(self) -> None:
        """Until the client or the server ends it, or nothing was asked for too long."""
        try:
            while True:
                await self._slots.acquire()
                text = await self._next()
                if text is None:
                    break
                self._take(text)
        finally:
            self._waiting.put_nowait(None)

    async def _next(self) -> Buffer | PredictorError | None:
        """The next message, or why it is refused. A client that waits for its answers is not idle."""
        while True:
            try:
                return await self._session.receive(self._idle_s)
            except PredictorError as error:
                return error
            except TimeoutError:
                if not self._messages:
                    await self._session.close(NORMAL, "Timeout")
                    return None

    def _take(self, text: Buffer | PredictorError) -> None:
        message = Message(self._session, b"" if isinstance(text, PredictorError) else text)
        self._messages.add(message)
        self._waiting.put_nowait(message)
        try:
            if isinstance(text, PredictorError):
                raise text
            self._check_rate()
            outcome = self._begin(self._server, message.call, error_frame)
        except Exception as error:
            self._refuse(message, error)
        else:
            if outcome is not None:
                message.later = asyncio.get_running_loop().create_task(self._finish_later(message, outcome))

    def _check_rate(self) -> None:
        if self._limiter is not None and (wait := self._limiter.allow("", monotonic())):
            raise RateLimited(
                f"more than {self._rate} messages a second (safeguards.rate_limit.messages_per_second)", int(wait) + 1
            )

    async def _finish_later(self, message: Message, outcome: Awaitable[Reply]) -> None:
        try:
            message.finish(await outcome)
        except Exception as error:
            self._refuse(message, error)

    def _refuse(self, message: Message, error: Exception) -> None:
        reply = error_reply(error_frame, error, message.call)
        self._server.observe_refusal(NAME, {}, reply.status, perf_counter() - message.call.started)
        message.finish(reply)

    async def _speak(self) -> None:
        """Sends what is answered, in order; a failure of ours ends the conversation."""
        while (message := await self._waiting.get()) is not None:
            reply = await message.reply
            self._messages.discard(message)
            if reply.status == 500:
                await self._session.close(INTERNAL, "internal error; the server's log has the reason")
                return
            assert isinstance(reply.body, list)
            await self._session.send(b"".join(reply.body))
            self._slots.release()
