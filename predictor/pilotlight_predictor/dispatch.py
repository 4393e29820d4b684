"""Finds the route of a call, lets it through the gate, runs its handler, and turns errors into replies.

The only place where an exception becomes a status. Both fronts (lane.py and http.py) call `Dispatcher.serve`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from pilotlight.contract import HEADER_REQUEST_ID, HEADER_TRACEPARENT
from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.access import Action
from pilotlight_predictor.admission import Admission
from pilotlight_predictor.calls import Call, Reply, Session
from pilotlight_predictor.errors import BadRequest, Cancelled, MethodNotAllowed, NotFound, PredictorError
from pilotlight_predictor.logs import log, new_request_id
from pilotlight_predictor.protocol.compression import decompress

if TYPE_CHECKING:
    from pilotlight_predictor.server import Server
    from pilotlight_predictor.settings import Limits, Settings
    from pilotlight_predictor.watch import CallWatch

# A handler answers at once, later (an awaitable), or by calling `call.finish` itself (None).
Handler = Callable[["Server", Call], Reply | Awaitable[Reply] | None]
ErrorBody = Callable[[PredictorError], Reply]
SocketHandler = Callable[["Server", Session], Awaitable[None]]


class Route(NamedTuple):
    """A row of a dialect's table. `pattern` has `{name}` segments, which may end as in `{name}:predict`; `hot` rows may
    be served by the fast lane."""

    method: str
    pattern: str
    handler: Handler
    action: Action
    hot: bool = False
    socket: SocketHandler | None = None  # who talks when the client asks for a WebSocket here


class Dialect(NamedTuple):
    name: str
    routes: tuple[Route, ...]
    error_body: ErrorBody
    limits: "Callable[[Settings], Limits] | None" = None  # its own, where those of all dialects do not bind it


class Match(NamedTuple):
    route: Route
    dialect: Dialect
    params: dict[str, str]


class Dispatcher:
    """`all_dialects` gives the whole table where `dialects` is only what a start waits for."""

    def __init__(
        self,
        server: "Server",
        dialects: tuple[Dialect, ...],
        admission: Admission,
        all_dialects: Callable[[], tuple[Dialect, ...]] | None = None,
    ) -> None:
        self._server = server
        self._dialects = dialects
        self._all_dialects = all_dialects
        self.admission = admission
        self._shapes = _by_length(dialects)
        self._cache: dict[tuple[str, str], Match] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.watch: CallWatch | None = None

    def match(self, method: str, path: str) -> Match:
        """Raises NotFound or MethodNotAllowed."""
        found = self._cache.get((method, path))
        if found is None:
            found = self._search(method, path)
            if len(path) <= 256:  # paths are the client's to choose, and so is how many there are
                if len(self._cache) > 1024:
                    self._cache.clear()
                self._cache[method, path] = found
        return found

    def complete(self) -> None:
        """Brings the dialects that are still missing: with the first call that the others have no route for, or once
        the first requests are answered."""
        if self._all_dialects is None:
            return
        try:
            self._dialects, self._all_dialects = self._all_dialects(), None
        except Exception as error:
            log("dialects.failed", "a dialect could not be imported", level="ERROR", error=error)
            raise PredictorError("internal error; the server's log has the reason") from error
        self._shapes = _by_length(self._dialects)

    def _search(self, method: str, path: str) -> Match:
        if self._all_dialects is not None:
            with suppress(NotFound, MethodNotAllowed):
                return self._search_known(method, path)
            self.complete()
        return self._search_known(method, path)

    def _search_known(self, method: str, path: str) -> Match:
        segments = [_decoded(segment) for segment in path.strip("/").split("/")]
        allowed: set[str] = set()
        for dialect, route, pattern in self._shapes.get(len(segments), ()):
            params = _params(pattern, segments)
            if params is not None:
                if route.method == method:
                    return Match(route, dialect, params)
                if method == "HEAD" and route.method == "GET":  # as GET; the full server leaves the body out
                    return Match(route._replace(hot=False), dialect, params)
                allowed |= {"GET", "HEAD"} if route.method == "GET" else {route.method}
        if allowed:
            allow = ", ".join(sorted(allowed))
            raise MethodNotAllowed(f"{method[:50]} is not allowed on {path[:200]}; use {allow}", allow)
        raise NotFound(f"no route {method[:50]} {path[:200]}")

    def refused(self, call: Call, error: Exception, match: Match | None) -> Reply:
        """The reply to a call that got no further than this; an inference counts, whether its model exists or not."""
        dialect = match.dialect if match else self._dialect_of(call, error)
        reply = error_reply(dialect.error_body, error, call)
        if match is not None and match.route.action is Action.INFER:
            self._server.observe_refusal(match.dialect.name, match.params, reply.status, perf_counter() - call.started)
        return reply

    def _dialect_of(self, call: Call, error: Exception) -> Dialect:
        """In whose words a call without a route is answered: who has the path with other methods, else the first."""
        if isinstance(error, MethodNotAllowed):
            segments = [_decoded(segment) for segment in call.path.strip("/").split("/")]
            for dialect, _, pattern in self._shapes.get(len(segments), ()):
                if _params(pattern, segments) is not None:
                    return dialect
        return self._dialects[0]

    def match_or_none(self, call: Call) -> Match | None:
        try:
            return self.match(call.method, call.path)
        except PredictorError:
            return None

    def admit(self, call: Call) -> Match:
        """The route of a call whose body is still to be read; raises what the caller is to be told instead."""
        match = self.match(call.method, call.path)
        self.admission.admit(call.headers, call.peer, match.route.action, match.dialect.name)
        return match

    def serve(self, call: Call, match: Match) -> None:
        """Answers an admitted call, now or later, through `call.finish`."""
        call.params = match.params
        if self.watch is not None:
            self.watch.attach(call, match.route.pattern)
        if "content-encoding" in call.headers:
            self._spawn(self._unpack_and_handle(call, match))
        else:
            self._handle(call, match)

    async def converse(self, session: Session, match: Match) -> None:
        """Lets the route's own handler talk over an admitted WebSocket, until either side ends it."""
        assert match.route.socket is not None
        await match.route.socket(self._server, session)

    def _handle(self, call: Call, match: Match) -> None:
        try:
            outcome = match.route.handler(self._server, call)
        except Exception as error:
            call.finish(self.refused(call, error, match))
            return
        if isinstance(outcome, Reply):
            call.finish(outcome)
        elif outcome is not None:
            self._spawn(self._finish_later(call, match, outcome))

    async def _unpack_and_handle(self, call: Call, match: Match) -> None:
        """In a thread: a small body may unpack for a tenth of a second, and zlib leaves the interpreter to others."""
        body, encoding = call.body, call.headers["content-encoding"]
        limit = self.admission.max_bytes(match.dialect.name)
        try:
            plain = await self._server.codecs.run(lambda: decompress(body, encoding, limit))
            if call.abandoned:
                raise Cancelled("the client has gone")
            self._replace_body(call, plain)
        except Exception as error:
            call.finish(self.refused(call, error, match))
        else:
            self._handle(call, match)

    def _replace_body(self, call: Call, plain: Buffer) -> None:
        """What a body unpacks to counts as bytes in flight too, or small bodies could fill the memory."""
        if plain is call.body:
            return
        length, finish = len(plain), call.finish
        self.admission.take(length)

        def finish_and_release(reply: Reply) -> None:
            self.admission.give_back(length)
            finish(reply)

        call.body, call.finish = plain, finish_and_release

    async def _finish_later(self, call: Call, match: Match, outcome: Awaitable[Reply]) -> None:
        try:
            reply = await outcome
        except Exception as error:
            reply = self.refused(call, error, match)
        call.finish(reply)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def error_reply(error_body: ErrorBody, error: Exception, call: Call) -> Reply:
    """What the client sees: our own errors in words, anything else opaque and in the log."""
    request_id = ""
    if not isinstance(error, PredictorError):
        request_id = _tell(call, "unexpected error", error)
        error = PredictorError("internal error; the server's log has the reason")
    elif error.status == 500:
        request_id = _tell(call, str(error), None, error.request_id)
    reply = error_body(error)
    headers = dict(reply.headers or {})
    if request_id and request_id.isascii() and request_id.isprintable():
        headers[HEADER_REQUEST_ID] = request_id
    if error.retry_after is not None:
        headers["Retry-After"] = str(error.retry_after)
    if isinstance(error, MethodNotAllowed):
        headers["Allow"] = error.allow
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if error.status == 501:
        headers["Accept-Encoding"] = "gzip, deflate"
    reply.headers = headers or None
    return reply


def _tell(call: Call, message: str, error: Exception | None, known_as: str = "") -> str:
    """The id under which the log has it: whoever sent none is told one."""
    request_id = call.header(HEADER_REQUEST_ID) or known_as or new_request_id()
    ids = {"request_id": request_id, "traceparent": call.header(HEADER_TRACEPARENT)}
    log("request.failed", message, level="ERROR", error=error, path=call.path, **ids)
    return request_id


def _by_length(dialects: tuple[Dialect, ...]) -> dict[int, list[tuple[Dialect, Route, list[str]]]]:
    shapes: dict[int, list[tuple[Dialect, Route, list[str]]]] = {}
    for dialect in dialects:
        for route in dialect.routes:
            pattern = route.pattern.strip("/").split("/")
            shapes.setdefault(len(pattern), []).append((dialect, route, pattern))
    return shapes


def _params(pattern: list[str], segments: list[str]) -> dict[str, str] | None:
    params: dict[str, str] = {}
    for want, got in zip(pattern, segments, strict=True):
        if want.startswith("{"):
            name, _, ending = want[1:].partition("}")
            value = got.removesuffix(ending)
            if not value or (ending and value == got):
                return None
            params[name] = value
        elif want != got:
            return None
    return params


def _decoded(segment: str) -> str:
    if "%" not in segment:
        return segment
    try:
        return unquote(segment, errors="strict")
    except UnicodeDecodeError:
        raise BadRequest("the path has a percent-encoding that is not UTF-8") from None
