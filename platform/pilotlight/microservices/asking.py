"""Asks a microservice: one request to `/v1/chat/completions`, sent again while the model loads.

`judge` reads an answer by its status and error type; `ask` has the effects, with clock and sleep as arguments. A
container that cannot be reached is looked at on its platform, so that one which has ended is not waited for.
"""

import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Literal

from msgspec import Struct

from pilotlight.conversation import FAILURES, Conversation
from pilotlight.errors import PlatformError, TimedOut, UsageError
from pilotlight.microservices.inner_command import MODEL_NAME
from pilotlight.microservices.model import Seen

PATH: Final = "/v1/chat/completions"
MODEL: Final = f"/v2/models/{MODEL_NAME}"
TENSORS: Final = f"{MODEL}/infer"
LOGS: Final = "platformctl microservice logs"
CHAT_INPUT: Final = "messages"  # a model of our predictor that has it chats
NO_CHAT: Final = "none here does"  # our predictor's words to a chat where its model takes tensors alone
JSON: Final = {"Content-Type": "application/json"}
PROBE: Final[Mapping[str, Any]] = {"messages": []}
LEAST_TIMEOUT_S: Final = 300.0  # a model may think for minutes
PAUSE_S: Final = 2.0
LONGEST_PAUSE_S: Final = 15.0
ENDED: Final = ("failed", "stopped", "gone")
REFUSED: Final = "the request was refused with "
GIVE_UP: Final = ("initialization_error", "model_load_error")


class Reply(Struct, frozen=True):
    status: int
    headers: Mapping[str, str]
    document: Any
    seconds: float = 0.0


class Verdict(Struct, frozen=True):
    """`type` is the error's own word."""

    kind: Literal["answer", "again", "failed"]
    message: str = ""
    type: str = ""


Send = Callable[[str, Mapping[str, Any], float], Reply]


def judge(reply: Reply) -> Verdict:
    """200 answers; 202, 429 and 503 that is not ready yet mean `again`; the rest will not become better by waiting."""
    error = _error(reply.document)
    kind, message = str(error.get("type") or ""), str(error.get("message") or "")
    if reply.status == 200:
        return Verdict("answer")
    if reply.status in (202, 429):
        return Verdict("again", message or "the model is loading", kind)
    if reply.status == 503 and kind not in GIVE_UP:
        return Verdict("again", message or "the model is not ready", kind or "model_not_ready")
    return Verdict("failed", message or f"it answered {reply.status}", kind)


def _error(document: Any) -> Mapping[str, Any]:
    """Flask's and FastAPI's plain texts beside OpenAI's object."""
    if not isinstance(document, dict):
        return {"message": str(document)[:300]} if document else {}
    error = document.get("error", document)
    return error if isinstance(error, dict) else {"message": str(error)}


def content(document: Any) -> str:
    """What the model said; a container that answers 200 with something else is told so."""
    try:
        said = document["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        raise PlatformError(f"it answered 200 without choices[0].message.content: {str(document)[:200]}") from None
    return said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)


def ask(
    url: str, body: Mapping[str, Any], look: Callable[[], Seen], *, timeout: float = LEAST_TIMEOUT_S,
    patience: float = 600.0, say: Callable[[str], None] = lambda _: None, send: "Send | None" = None,
    clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
) -> Reply:  # fmt: skip
    """The answer, once there is one. `patience` is for the model to be there, `timeout` for one answer."""
    check_timeout(timeout)
    once = partial(_try, url, body, timeout, send or post, look, _is_answer)
    return _until(once, patience, say, clock, sleep)


def await_model(
    url: str, look: Callable[[], Seen], *, patience: float = 600.0, say: Callable[[str], None] = lambda _: None,
    send: "Send | None" = None, clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:  # fmt: skip
    """Returns once the model is there, without an inference: a request that has no messages is refused then."""
    once = partial(_try, url, PROBE, LEAST_TIMEOUT_S, send or post, look, is_there)
    _until(once, patience, say, clock, sleep)


def is_there(verdict: Verdict) -> bool:
    """Whether it was the model's server that judged the request, whatever it thought of it."""
    return verdict.kind == "answer" or (verdict.kind == "failed" and verdict.type not in GIVE_UP)


def _is_answer(verdict: Verdict) -> bool:
    return verdict.kind == "answer"


def _until(
    once: "Callable[[], tuple[Reply | Verdict, float]]", patience: float, say: Callable[[str], None],
    clock: Callable[[], float], sleep: Callable[[float], None],
) -> Reply:  # fmt: skip
    end = clock() + patience
    while True:
        found, pause = once()
        if isinstance(found, Reply):
            return found
        if clock() + pause > end:
            raise TimedOut(f"it was not ready within {patience:g} s: {found.message}", "wait longer: --wait SECONDS")
        say(found.message)
        sleep(pause)


def check_timeout(timeout: float) -> None:
    if timeout < LEAST_TIMEOUT_S:
        raise UsageError(f"timeout = {timeout:g}, must be at least {LEAST_TIMEOUT_S:g} s: models may take minutes")


def _try(
    url: str, body: Mapping[str, Any], timeout: float, send: Send, look: Callable[[], Seen],
    settled: Callable[[Verdict], bool],
) -> "tuple[Reply | Verdict, float]":  # fmt: skip
    """The answer, or why it has to be asked for again and when."""
    try:
        reply = send(url, body, timeout)
    except ConnectionError:
        return _unreached(look()), PAUSE_S
    verdict = judge(reply)
    if settled(verdict):
        return reply, 0.0
    if verdict.kind == "failed":
        raise failure(reply.status, verdict)
    return verdict, _pause(reply)


def failure(status: int, verdict: Verdict) -> PlatformError:
    """With what to do about it."""
    told = f"{verdict.type}: {verdict.message}" if verdict.type else verdict.message
    if status == 503:
        return PlatformError(f"it will not become ready: {told}", f"{LOGS} says more")
    if 400 <= status < 500:
        return UsageError(f"{REFUSED}{status}: {told}", "change the request")
    return PlatformError(f"the inference failed with {status}: {told}", f"{LOGS} says more")


def _unreached(seen: Seen) -> Verdict:
    if seen.state in ENDED:
        reason = f": {seen.reason}" if seen.reason else ""
        raise PlatformError(f"it does not run any more, it is {seen.state}{reason}", LOGS)
    return Verdict("again", seen.reason or "it is not listening yet")


def _pause(reply: Reply) -> float:
    told = reply.headers.get("retry-after", "")
    return min(float(told), LONGEST_PAUSE_S) if told.isdigit() and int(told) > 0 else PAUSE_S


def post(url: str, body: Mapping[str, Any], timeout: float) -> Reply:
    """One chat on a connection of its own. ConnectionError: nobody took it, or it was cut before an answer came."""
    return _exchange("POST", url, PATH, json.dumps(body), timeout)


def post_tensors(url: str, body: Mapping[str, Any], timeout: float) -> Reply:
    """The same for a model of tensors, by V2."""
    return _exchange("POST", url, TENSORS, json.dumps(body), timeout)


def metadata(url: str, timeout: float) -> Mapping[str, Any]:
    """What V2 says of the model that our predictor serves."""
    reply = _exchange("GET", url, MODEL, "", timeout)
    return reply.document if reply.status == 200 and isinstance(reply.document, dict) else {}


def status_of(url: str, timeout: float) -> Mapping[str, Any]:
    """What our predictor says of itself; empty for a container of others, which has another word for it or none."""
    reply = _exchange("GET", url, "/status", "", timeout)
    return reply.document if reply.status == 200 and isinstance(reply.document, dict) else {}


def _exchange(method: str, url: str, path: str, body: str, timeout: float) -> Reply:
    begin, conversation = time.monotonic(), Conversation(url, timeout, JSON if body else {})
    try:
        with conversation:
            _connect(conversation)
            answer = conversation.ask(method, path, body.encode())
    except TimeoutError:
        raise TimedOut(f"no answer within {timeout:g} s", "give it longer: --timeout SECONDS") from None
    except ConnectionError:
        raise
    except FAILURES as error:
        raise PlatformError(f"the connection to {conversation.address} broke: {error!r}") from error
    return Reply(answer.status, answer.headers, parsed(answer.body), time.monotonic() - begin)


def _connect(conversation: Conversation) -> None:
    """Who cannot be reached in time does not listen; who was reached and is silent thinks."""
    try:
        conversation.connect()
    except OSError as error:
        raise ConnectionError(str(error)) from error


def parsed(text: bytes) -> Any:
    """The document, or the plain text where a server answers by one."""
    try:
        return json.loads(text)
    except ValueError:
        return text.decode(errors="replace")
