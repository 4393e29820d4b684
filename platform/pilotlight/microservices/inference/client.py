"""HTTP client of a running microservice: its route, chat requests, and single V2 requests.

`classify` maps status and error type to a verdict; `open_route` and `send_chat` have the effects: both retry while the
model loads, within one `Wait`. Where the container is unreachable, its platform status is read, so that a terminated
one is not waited for. Blocking.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any, Final, Literal

from msgspec import Struct

from pilotlight.contract import TASK_NOT_SUPPORTED
from pilotlight.errors import NotFound, PlatformError, TimedOut, UsageError
from pilotlight.microservices.registry.container_command import MODEL_NAME
from pilotlight.microservices.registry.records import PlatformStatus
from pilotlight.wire.http_client import FAILURES, HttpClient, HttpReply, decode_json

PATH: Final = "/v1/chat/completions"
MODEL: Final = f"/v2/models/{MODEL_NAME}"
TENSORS: Final = f"{MODEL}/infer"
LOGS: Final = "platformctl microservice logs"
JSON: Final = {"Content-Type": "application/json"}
PROBE: Final[Mapping[str, Any]] = {"messages": []}
MAX_BYTES: Final = 64 << 20  # of a response: the code of an org may send it
MIN_TIMEOUT_S: Final = 300.0  # a generation may take minutes
PAUSE_S: Final = 2.0
MAX_PAUSE_S: Final = 15.0
ENDED: Final = ("failed", "stopped", "gone")
REFUSED: Final = "the request was refused with "
GIVE_UP: Final = ("initialization_error", "model_load_error")


class ChatResponse(Struct, frozen=True):
    status: int
    headers: Mapping[str, str]
    document: Any
    seconds: float = 0.0


class Verdict(Struct, frozen=True):
    """Classified response; `type` and `code` are those of the error in its body."""

    kind: Literal["answer", "again", "failed"]
    message: str = ""
    type: str = ""
    code: str = ""


class InferenceFailed(PlatformError):
    """The microservice returned an error, or no response (`status` 0)."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class TaskNotSupported(UsageError):
    """The model cannot serve the route, such as chat."""


Send = Callable[[str, Mapping[str, Any], float], ChatResponse]


def classify(response: ChatResponse) -> Verdict:
    """Classify a response: 200 is an answer; 202, 429 and 503 are retried, unless the error is permanent."""
    error = _error(response.document)
    kind, message = str(error.get("type") or ""), str(error.get("message") or "")
    if response.status == 200:
        return Verdict("answer")
    if response.status == 202 and kind != "initializing":
        kind = "model_loading"
    if response.status in (202, 429):
        return Verdict("again", message or "the model is loading", kind)
    if response.status == 503 and kind not in GIVE_UP:
        return Verdict("again", message or "the model is not ready", kind or "model_not_ready")
    return Verdict("failed", message or f"it returned {response.status}", kind, str(error.get("code") or ""))


def _error(document: Any) -> Mapping[str, Any]:
    """Return the error object of OpenAI, or one made from a plain text of Flask or FastAPI."""
    if not isinstance(document, dict):
        return {"message": str(document)[:300]} if document else {}
    error = document.get("error", document)
    return error if isinstance(error, dict) else {"message": str(error)}


class Wait:
    """Time for a microservice to become ready, from now on: its route and its model share it."""

    def __init__(
        self, max_wait_s: float = 600.0, report: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self._max_wait_s, self._report, self._clock, self._sleep = max_wait_s, report, clock, sleep
        self._end = clock() + max_wait_s

    def pause(self, message: str, seconds: float = PAUSE_S) -> None:
        """Report why it is not ready, and sleep. Raise TimedOut if the time would be over then."""
        if self._clock() + seconds > self._end:
            raise TimedOut(f"it was not ready within {self._max_wait_s:g} s: {message}", "wait longer: --wait SECONDS")
        self._report(message)
        self._sleep(seconds)


@contextmanager
def open_route(
    open_once: Callable[[], AbstractContextManager[str]], get_platform_status: Callable[[], PlatformStatus], wait: Wait
) -> Iterator[str]:
    """Yield the URL. NotFound is retried until the job has ended: a port-forward needs a pod that is ready."""
    with ExitStack() as stack:
        while True:
            try:
                url = stack.enter_context(open_once())
                break
            except NotFound as error:
                message = _not_listening_reason(get_platform_status(), str(error))
            wait.pause(message)
        yield url


def send_chat(
    url: str, body: Mapping[str, Any], get_platform_status: Callable[[], PlatformStatus], wait: Wait, *,
    timeout: float = MIN_TIMEOUT_S, send: "Send | None" = None,
    settled: Callable[[Verdict], bool] = lambda verdict: verdict.kind == "answer",
) -> ChatResponse:  # fmt: skip
    """Return the response. `wait` bounds the wait for the model, `timeout` one response."""
    check_timeout(timeout)
    while True:
        try:
            response = (send or post_chat)(url, body, timeout)
        except ConnectionError:
            message, pause = _not_listening_reason(get_platform_status()), PAUSE_S
        else:
            verdict = classify(response)
            if settled(verdict):
                return response
            if verdict.kind == "failed":
                raise to_error(response.status, verdict)
            retry_after = response.headers.get("retry-after", "")
            seconds = float(retry_after) if retry_after.isdigit() else 0.0
            message, pause = verdict.message, min(seconds, MAX_PAUSE_S) or PAUSE_S
        wait.pause(message, pause)


def _not_listening_reason(status: PlatformStatus, unknown: str = "it is not listening yet") -> str:
    """Return why it is not listening yet. Raise where it has ended."""
    if status.state in ENDED:
        reason = f": {status.reason}" if status.reason else ""
        raise PlatformError(f"it is no longer running, it is {status.state}{reason}", LOGS) from None
    return status.reason or unknown


def wait_for_model(
    url: str, get_platform_status: Callable[[], PlatformStatus], wait: Wait, send: "Send | None" = None
) -> None:
    """Wait until the model serves: it rejects a request without messages."""
    send_chat(url, PROBE, get_platform_status, wait, send=send, settled=is_serving)


def is_serving(verdict: Verdict) -> bool:
    """Return whether the model's server has processed the request, also by rejecting it."""
    return verdict.kind == "answer" or (verdict.kind == "failed" and verdict.type not in GIVE_UP)


def check_timeout(timeout: float) -> None:
    if timeout < MIN_TIMEOUT_S:
        raise UsageError(f"timeout = {timeout:g}, must be at least {MIN_TIMEOUT_S:g} s: models may take minutes")


def to_error(status: int, verdict: Verdict) -> PlatformError:
    """Return the error of a failed request, with a hint."""
    message = f"{verdict.type}: {verdict.message}" if verdict.type else verdict.message
    if status == 503:
        return PlatformError(f"it will not become ready: {message}", f"see {LOGS}")
    if 400 <= status < 500:
        kind = TaskNotSupported if verdict.code == TASK_NOT_SUPPORTED else UsageError
        return kind(f"{REFUSED}{status}: {message}", "change the request")
    return PlatformError(f"the inference failed with {status}: {message}", f"see {LOGS}")


def post(path: str, url: str, body: Mapping[str, Any], timeout: float) -> ChatResponse:
    """Send one request on a new connection. ConnectionError: refused, or closed before a response."""
    return _exchange("POST", url, path, json.dumps(body), timeout)


post_chat: Final[Send] = partial(post, PATH)


def get_document(url: str, path: str, timeout: float) -> Mapping[str, Any]:
    """Return the JSON object at a path of the predictor, such as /status; empty for other containers."""
    response = _exchange("GET", url, path, "", timeout)
    return response.document if response.status == 200 and isinstance(response.document, dict) else {}


def _exchange(method: str, url: str, path: str, body: str, timeout: float) -> ChatResponse:
    http = HttpClient(url, timeout, JSON if body else {}, MAX_BYTES)
    try:
        with http:
            try:
                http.connect()
            except OSError as error:  # also a timeout: nothing listens; one after it means that the model is busy
                raise ConnectionError(str(error)) from error
            response = http.request(method, path, body.encode())
    except TimeoutError:
        raise TimedOut(f"no response within {timeout:g} s", "raise the timeout: --timeout SECONDS") from None
    except ConnectionError:
        raise
    except FAILURES as error:
        raise PlatformError(f"the connection to {http.address} was lost: {error!r}") from error
    return ChatResponse(response.status, response.headers, parse_body(response.body), response.seconds)


def parse_body(text: bytes) -> Any:
    """Parse a JSON body; return other bodies as text."""
    try:
        return decode_json(text)
    except ValueError:
        return text.decode(errors="replace")


def call(
    url: str, method: str, path: str, body: bytes, timeout: float, headers: Mapping[str, str] | None = None
) -> HttpReply:
    """Return the response 200 to one request. Raise InferenceFailed for any other, and where there is none."""
    try:
        with HttpClient(url, timeout, JSON, MAX_BYTES) as http:
            response = http.request(method, path, body, headers)
    except TimeoutError:
        raise InferenceFailed(f"the microservice did not respond within {timeout:g} s") from None
    except FAILURES as error:
        raise InferenceFailed(f"the microservice cannot be reached ({type(error).__name__})") from error
    if response.status != 200:
        document = parse_body(response.body)
        message = _error(document).get("message") if isinstance(document, dict) and "error" in document else ""
        raise InferenceFailed(str(message or f"the microservice returned {response.status}"), response.status)
    return response
