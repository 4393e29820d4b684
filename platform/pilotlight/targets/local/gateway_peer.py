"""One gateway as the control process is connected to it: orders go out, each is answered in its turn, words come in."""

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence

from pilotlight.gateway.messages import Applied, Hello, Leaving, Order, Sockets, Word
from pilotlight.gateway.sockets import Channel

Answer = tuple[Applied | Sockets | None, list[socket.socket]]  # with what came along; None: nobody is there to answer


class Peer:
    """`on_word` hears all that is no answer; `on_lost` is called once, unless we close."""

    def __init__(
        self, connection: socket.socket, on_word: Callable[["Peer", Word], None], on_lost: Callable[["Peer"], None]
    ) -> None:
        self.hello: asyncio.Future[Hello] = asyncio.get_running_loop().create_future()
        self.leaving = False  # it accepts nothing more, and finishes what it has
        self.silent = False  # it let an order go unanswered for too long
        self._on_word, self._on_lost = on_word, on_lost
        self._asked: deque[asyncio.Future[Answer]] = deque()  # in the order in which they are answered
        self._channel: Channel[Word] = Channel(connection, Word, self._hear, self._lose)

    @property
    def closed(self) -> bool:
        return self._channel.closed

    def ask(self, order: Order, lent: Sequence[socket.socket] = ()) -> "asyncio.Future[Answer]":
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._asked.append(answered)
        self._channel.send(order, lent)
        if self.closed:
            self.expect_nothing()
        return answered

    def tell(self, order: Order) -> None:
        """An order that has no answer."""
        self._channel.send(order)

    def expect_nothing(self) -> None:
        """Whoever waits for an answer waits no longer; one that comes still belongs to its order."""
        for answered in self._asked:
            if not answered.done():
                answered.set_result((None, []))

    def close(self) -> None:
        self._channel.close()
        self.expect_nothing()

    def _hear(self, word: Word, came: list[socket.socket]) -> None:
        if isinstance(word, Applied | Sockets):
            self._answer(word, came)
            return
        if isinstance(word, Hello) and not self.hello.done():
            self.hello.set_result(word)
        self.leaving = self.leaving or isinstance(word, Leaving)
        self._on_word(self, word)

    def _answer(self, word: Applied | Sockets, came: list[socket.socket]) -> None:
        answered = self._asked.popleft()
        if not answered.done():
            answered.set_result((word, came))
            return
        for unwanted in came:
            unwanted.close()

    def _lose(self) -> None:
        if not self.hello.done():
            self.hello.set_exception(ConnectionError("closed before it said hello"))
        self.expect_nothing()
        self._on_lost(self)
