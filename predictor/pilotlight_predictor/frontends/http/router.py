"""HTTP router: find a request's route, admit it, run its handler, and turn exceptions into responses.

The only place where an exception becomes an HTTP status. Both HTTP servers, the fast protocol and aiohttp, call
`Dispatcher.serve`.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote

from pilotlight.contract import HEADER_REQUEST_ID, HEADER_TRACEPARENT
from pilotlight_predictor.core.compression import decompress
from pilotlight_predictor.errors import BadRequest, Cancelled, MethodNotAllowed, NoRoute, NotFound, PredictorError
from pilotlight_predictor.frontends.admission import Admission
from pilotlight_predictor.frontends.auth import Action
from pilotlight_predictor.frontends.forwarded_headers import HeaderForwarding
from pilotlight_predictor.frontends.http.messages import HttpRequest, HttpResponse, WebSocketSession
from pilotlight_predictor.frontends.restricted_apis import RestrictedApis, Restriction
from pilotlight_predictor.frontends.tasks_and_timeouts import spawn
from pilotlight_predictor.observability.logs import log, new_request_id

if TYPE_CHECKING:
    from pilotlight_predictor.config import Limits, Settings
    from pilotlight_predictor.frontends.http.access_log import RequestObserver
    from pilotlight_predictor.frontends.http.request_log import RequestLogger
    from pilotlight_predictor.server.handler_context import Server

# A handler returns a response, an awaitable of one, or None if it calls `request.finish` itself.
Handler = Callable[["Server", HttpRequest], HttpResponse | Awaitable[HttpResponse] | None]
ErrorBody = Callable[[PredictorError], HttpResponse]
SocketHandler = Callable[["Server", WebSocketSession], Awaitable[None]]


TRITON_PROTOCOLS: Final = frozenset({"v2", "generate"})
TRITON_SERVICE: Final = "/inference."


class Route(NamedTuple):
    """A row of a protocol's route table. The fast HTTP protocol serves only `hot` routes.

    `pattern` has `{name}` segments, also with a suffix: `{name}:predict`.
    """

    method: str
    pattern: str
    handler: Handler
    action: Action
    hot: bool = False
    socket: SocketHandler | None = None  # handler of WebSocket upgrades


def model_routes(prefix: str, suffix: str, method: str, handler: Handler, action: Action) -> list[Route]:
    """Return the hot routes of a model, with and without a version."""
    patterns = (f"{prefix}/models/{{model}}{version}{suffix}" for version in ("", "/versions/{version}"))
    return [Route(method, pattern, handler, action, hot=True) for pattern in patterns]


class ServingProtocol(NamedTuple):
    name: str
    routes: tuple[Route, ...]
    error_body: ErrorBody
    limits: "Callable[[Settings], Limits] | None" = None  # its own limits in place of the general ones


class Match(NamedTuple):
    route: Route
    protocol: ServingProtocol
    params: dict[str, str]
    restriction: Restriction | None = None


class Dispatcher:
    """Router of HTTP requests. `all_protocols` returns the complete table; `protocols` are those needed at start."""

    def __init__(
        self,
        server: "Server",
        protocols: tuple[ServingProtocol, ...],
        admission: Admission,
        all_protocols: Callable[[], tuple[ServingProtocol, ...]] | None = None,
    ) -> None:
        self._server = server
        self._protocols = protocols
        self._all_protocols = all_protocols
        self.admission = admission
        self._shapes = _by_length(protocols)
        self._cache: dict[tuple[str, str], Match] = {}
        settings = admission.settings
        self._as_triton = settings.as_triton
        self._restricted = RestrictedApis(settings.http_restricted_apis, "API")
        self.forwarding = HeaderForwarding(settings.http_header_forward_pattern)
        self.observer: RequestObserver | None = None
        self.request_logger: RequestLogger | None = None

    def match(self, method: str, path: str) -> Match:
        """Return the route of a path. Raises NotFound or MethodNotAllowed."""
        match = self._cache.get((method, path))
        if match is None:
            match = self._search(method, path)
            if len(path) <= 256:  # clients choose the paths: bound their length and number
                if len(self._cache) > 1024:
                    self._cache.clear()
                self._cache[method, path] = match
        return match

    def load_all_protocols(self) -> None:
        """Add the protocols that the start did not wait for: at the first request without a route, or when idle."""
        if self._all_protocols is None:
            return
        try:
            self._protocols, self._all_protocols = self._all_protocols(), None
        except Exception as error:
            log("dialects.failed", "a protocol could not be imported", level="ERROR", error=error)
            raise PredictorError("internal error; see the server's log") from error
        self._shapes = _by_length(self._protocols)

    def _search(self, method: str, path: str) -> Match:
        if self._all_protocols is not None:
            with suppress(NotFound, MethodNotAllowed):
                return self._search_known(method, path)
            self.load_all_protocols()
        return self._search_known(method, path)

    def _search_known(self, method: str, path: str) -> Match:
        segments = [_decoded(segment) for segment in path.strip("/").split("/")]
        allowed: set[str] = set()
        for protocol, route, pattern in self._shapes.get(len(segments), ()):
            params = _params(pattern, segments)
            if params is not None:
                restriction = self._restricted.of(route.action, route.pattern)
                if route.method == method:
                    if self.forwarding and route.action is Action.INFER:
                        route = route._replace(hot=False)  # the fast protocol reads names of headers in lower case
                    return Match(route, protocol, params, restriction)
                if method == "HEAD" and route.method == "GET":  # as GET; the full server leaves the body out
                    return Match(route._replace(hot=False), protocol, params, restriction)
                allowed |= {"GET", "HEAD"} if route.method == "GET" else {route.method}
        if allowed:
            allow = ", ".join(sorted(allowed))
            calls = "; predictions are POST /v1/models/MODEL:predict, and /docs has examples" if path == "/" else ""
            calls = calls or _unknown_verb(method, path)
            raise MethodNotAllowed(f"{method[:50]} is not allowed on {path[:200]}; use {allow}{calls}", allow)
        hint = f"; did you mean /v1{path}? A base_url must end in /v1" if self._below_v1(method, path) else ""
        raise NoRoute(f"no route {method[:50]} {path[:200]}{hint}")

    def _below_v1(self, method: str, path: str) -> ServingProtocol | None:
        """Return OpenAI's protocol if it has this path below /v1, which the base URL of a client lacks."""
        segments = ["openai", "v1", *path.strip("/").split("/")]
        shapes = (each for each in self._shapes.get(len(segments), ()) if each[2][:2] == segments[:2])
        matching = (each for each in shapes if each[1].method == method and _params(each[2], segments) is not None)
        return next((protocol for protocol, *_ in matching), None)

    def reject(
        self, request: HttpRequest, error: Exception, match: Match | None, *, counted: bool = False
    ) -> HttpResponse:
        """Return the error response of a failed request. An inference is counted, even of an unknown model.

        `counted`: it has been, by its handler, and only its response is refused.
        """
        protocol = match.protocol if match else self._protocol_for(request, error)
        request.as_triton = self._as_triton and protocol.name in TRITON_PROTOCOLS
        if match is not None:
            request.params = match.params
        response = error_response(protocol.error_body, error, request)
        if match is None or match.route.action is not Action.INFER:
            return response
        if counted:
            self._server.metrics.responses_refused += 1
        else:
            self._server.observe_rejected(
                match.protocol.name, match.params, response.status, perf_counter() - request.started
            )
        return response

    def _protocol_for(self, request: HttpRequest, error: Exception) -> ServingProtocol:
        """Return the protocol whose error format a request without a route gets: one with the path, else the first."""
        if isinstance(error, NoRoute) and (near := self._below_v1(request.method, request.path)):
            return near
        if isinstance(error, MethodNotAllowed):
            segments = [_decoded(segment) for segment in request.path.strip("/").split("/")]
            for protocol, _, pattern in self._shapes.get(len(segments), ()):
                if _params(pattern, segments) is not None:
                    return protocol
        return self._protocols[0]

    def match_or_none(self, request: HttpRequest) -> Match | None:
        try:
            return self.match(request.method, request.path)
        except PredictorError:
            return None

    def admit(self, request: HttpRequest) -> Match:
        """Return the route of a request before its body is read. Raises PredictorError if it is not admitted."""
        self.admission.check_site(request.headers)
        match = self.match(request.method, request.path)
        self.admission.admit(request.headers, request.peer, match.route.action, match.protocol.name, match.restriction)
        return match

    def serve(self, request: HttpRequest, match: Match) -> None:
        """Handle an admitted request; the response is sent by `request.finish`, perhaps later."""
        request.params = match.params
        if self._as_triton:
            request.as_triton = match.protocol.name in TRITON_PROTOCOLS
        if self.observer is not None:
            self.observer.attach(request, match.route.pattern)
        if self.request_logger is not None and match.route.action is Action.INFER:
            self.request_logger.attach(request)
        if "content-encoding" in request.headers:
            spawn(self._unpack_and_handle(request, match))
        else:
            self._handle(request, match)

    async def serve_websocket(self, session: WebSocketSession, match: Match) -> None:
        """Run the route's WebSocket handler until either side ends the session."""
        assert match.route.socket is not None
        await match.route.socket(self._server, session)

    def _handle(self, request: HttpRequest, match: Match) -> None:
        try:
            outcome = match.route.handler(self._server, request)
        except Exception as error:
            request.finish(self.reject(request, error, match))
            return
        if isinstance(outcome, HttpResponse):
            request.finish(outcome)
        elif outcome is not None:
            spawn(self._finish_later(request, match, outcome))

    async def _unpack_and_handle(self, request: HttpRequest, match: Match) -> None:
        """Decompress in a thread: a small body may take 0.1 s, in which zlib releases the GIL.

        The output counts as bytes in flight while it grows: small bodies could otherwise exhaust the memory.
        """
        limit, size, finish = self.admission.max_bytes(match.protocol.name), 0, request.finish
        steps = decompress(request.body, request.headers["content-encoding"], limit)

        def finish_and_release(response: HttpResponse) -> None:
            self.admission.release(size)
            finish(response)

        request.finish = finish_and_release
        try:
            while isinstance(plain := await self._server.codecs.run(lambda: next(steps)), int):
                self.admission.take(plain - size)
                size = plain
                if request.abandoned:
                    raise Cancelled("the client disconnected")
            if plain is not request.body:
                self.admission.take(len(plain) - size)
                size = len(plain)
            request.body = plain
        except Exception as error:
            request.finish(self.reject(request, error, match))
        else:
            self._handle(request, match)

    async def _finish_later(self, request: HttpRequest, match: Match, outcome: Awaitable[HttpResponse]) -> None:
        try:
            response = await outcome
        except Exception as error:
            response = self.reject(request, error, match)
        request.finish(response)


def error_response(error_body: ErrorBody, error: Exception, request: HttpRequest) -> HttpResponse:
    """Return the client's response: a PredictorError with its message; others are logged, and opaque to the client."""
    request_id = ""
    if not isinstance(error, PredictorError):
        request_id = _log_failure(request, "unexpected error", error)
        error = PredictorError("internal error; see the server's log")
    elif error.status == 500:
        request_id = _log_failure(request, str(error), None, error.request_id)
    response = error_body(_as_triton(error, request) if request.as_triton else error)
    headers = dict(response.headers or {})
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
    response.headers = headers or None
    return response


def _as_triton(error: PredictorError, request: HttpRequest) -> PredictorError:
    from pilotlight_predictor.frontends.triton_errors import triton_error  # not for servers in the default mode

    transport = "grpc" if request.path.startswith(TRITON_SERVICE) else "http"
    return triton_error(error, f"{transport} {request.path}", request.params.get("model", ""), len(request.body))


def _log_failure(request: HttpRequest, message: str, error: Exception | None, known_as: str = "") -> str:
    """Log an internal error; return its request id, generated if the client sent none."""
    request_id = request.header(HEADER_REQUEST_ID) or known_as or new_request_id()
    ids = {"request_id": request_id, "traceparent": request.header(HEADER_TRACEPARENT)}
    log("request.failed", message, level="ERROR", error=error, path=request.path, **ids)
    return request_id


def _unknown_verb(method: str, path: str) -> str:
    """Return the hint of a V1 call whose verb is not known; outputs of a model are no verbs."""
    model, _, verb = path.removeprefix("/v1/models/").partition(":")
    if method != "POST" or not verb.isidentifier() or not path.startswith("/v1/models/") or "/" in model:
        return ""
    infer = f'POST /v2/models/{model[:100]}/infer with "outputs": [{{"name": "{verb[:100]}"}}]'
    return f"; {verb[:100]} is no verb of V1, which has predict and explain; an output of the model is had by {infer}"


def _by_length(protocols: tuple[ServingProtocol, ...]) -> dict[int, list[tuple[ServingProtocol, Route, list[str]]]]:
    shapes: dict[int, list[tuple[ServingProtocol, Route, list[str]]]] = {}
    for protocol in protocols:
        for route in protocol.routes:
            pattern = route.pattern.strip("/").split("/")
            shapes.setdefault(len(pattern), []).append((protocol, route, pattern))
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
