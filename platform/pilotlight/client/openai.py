"""Operations of OpenAI's protocol: chats and completions, whole or as a stream of events; embeddings; rerank, score."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pilotlight.client.errors import ResponseError
from pilotlight.client.session import Call, Operation, Reply, Session, document_of, reading, response_error
from pilotlight.wire.http_client import decode_json

if TYPE_CHECKING:
    from pilotlight.client.tensors import Array

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
EMBEDDINGS: Final = "/v1/embeddings"
RERANK: Final = "/v1/rerank"
SCORE: Final = "/v1/score"
MAX_EVENT: Final = 16 << 20  # bytes of one event of a stream
Messages = str | Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Completion:
    """A response of a text model, or one part of a stream; `str()` is its text. `document` is all that came."""

    document: Mapping[str, Any]
    cold_start_s: float = 0.0

    @property
    def message(self) -> Mapping[str, Any]:
        """Return the first choice's message or delta, with `content` and `tool_calls`; a completion has `text`."""
        choice = self._choice
        message: Mapping[str, Any] = choice.get("message") or choice.get("delta") or choice
        return message

    @property
    def text(self) -> str:
        """Text of the first choice; of a part of a stream what is new, empty for one that has only metadata."""
        return str(self.message.get("content") or self.message.get("text") or "")

    @property
    def finish_reason(self) -> str:
        return str(self._choice.get("finish_reason") or "")

    @property
    def usage(self) -> Mapping[str, Any]:
        return self.document.get("usage") or {}

    @property
    def _choice(self) -> Mapping[str, Any]:
        return next(iter(self.document.get("choices") or ()), {})

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class RankedDocument:
    """A document of `rerank`; `index` is its place in the request, a higher `score` is better."""

    index: int
    score: float
    text: str


class CompletionStream:
    """Decoder of server-sent events: feed it chunks, get completions. `complete` once the server has said so."""

    def __init__(self, reply: Reply, call: Call) -> None:
        self.reply, self.call = reply, call
        self.complete = False
        self._buffer = b""

    def feed(self, chunk: bytes) -> list[Completion]:
        """Return the events that are complete. Raise ResponseError for one that is an error."""
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        parts = []
        for line in lines:
            data = line.removeprefix(b"data:").strip() if line.startswith(b"data:") else b""
            if data == b"[DONE]":
                self.complete = True
            elif data:
                parts.append(self._completion(data))
        if len(self._buffer) > MAX_EVENT:
            raise ResponseError(f"stream: an event has more than {MAX_EVENT} bytes", 0, "no line break")
        return parts

    def _completion(self, data: bytes) -> Completion:
        with reading("stream"):
            document: Any = decode_json(data)
            if "error" not in document:
                return _checked(document, self.call)
        raise response_error(Reply(0, {}, data), "stream")

    def end(self) -> None:
        """Raise ResponseError if the chunks ended before the stream did."""
        if not self.complete:
            raise ResponseError("the stream ended without [DONE], so the text may be incomplete", 0, "no [DONE]")


def chat(
    session: Session, /, messages: Messages, *, model: str = "", timeout: float | None = None, **options: Any
) -> Operation[Completion]:
    """Return the answer to messages, or to one text of the user.

    `options` are fields of the request, such as max_tokens, temperature, tools, response_format. `timeout` are seconds
    for the whole call, cold start and retries included. Raise ResponseError, ConnectionFailed, DeadlineExceeded.
    """
    return (yield from _complete(session, CHAT, _chat_request(messages, model, options), timeout))


def stream_chat(
    session: Session, /, messages: Messages, *, model: str = "", timeout: float | None = None, **options: Any
) -> Operation[CompletionStream]:
    """Iterate over the parts of the answer as they come: the `text` of each Completion is what is new.

    Arguments and errors as of `chat`. Of an AsyncClient: `async for part in client.stream_chat(…)`, without await.
    """
    return (yield from _stream(session, CHAT, _chat_request(messages, model, options), timeout))


def complete(
    session: Session, /, prompt: str, *, model: str = "", timeout: float | None = None, **options: Any
) -> Operation[Completion]:
    """Return the text that continues a prompt; arguments and errors as of `chat`."""
    return (yield from _complete(session, COMPLETIONS, _request(model, options, prompt=prompt), timeout))


def stream_complete(
    session: Session, /, prompt: str, *, model: str = "", timeout: float | None = None, **options: Any
) -> Operation[CompletionStream]:
    """Iterate over the parts of a prompt's continuation as they come, as `stream_chat` does."""
    return (yield from _stream(session, COMPLETIONS, _request(model, options, prompt=prompt), timeout))


def embed(
    session: Session, /, texts: str | Sequence[str], *, model: str = "", timeout: float | None = None, **options: Any
) -> Operation["Array"]:
    """Return one float32 row for each text; errors as of `chat`."""
    several = [texts] if isinstance(texts, str) else list(texts)
    return (yield from _rows(session, EMBEDDINGS, _request(model, options, input=several), "embedding", timeout))


def rerank(
    session: Session, /, query: str, documents: Sequence[str], *, model: str = "", top_n: int | None = None,
    timeout: float | None = None, **options: Any,
) -> Operation[list[RankedDocument]]:  # fmt: skip
    """Return the documents by their relevance for the query, best first; `top_n` limits them. Errors as of `chat`."""
    fields = {"query": query, "documents": list(documents), **({} if top_n is None else {"top_n": top_n})}
    document = yield from _fetch(session, RERANK, _request(model, options, **fields), timeout)
    with reading(model or session.url):
        rows = [(int(each["index"]), float(each["relevance_score"])) for each in document["results"]]
        return [RankedDocument(index, score, documents[index]) for index, score in rows]


def score(
    session: Session, /, text_1: str | Sequence[str], text_2: str | Sequence[str], *, model: str = "",
    timeout: float | None = None, **options: Any,
) -> Operation["Array"]:  # fmt: skip
    """Return a float32 score for each text of `text_2`, with the one of `text_1` or its own; errors as of `chat`."""
    first, second = (text if isinstance(text, str) else list(text) for text in (text_1, text_2))
    return (yield from _rows(session, SCORE, _request(model, options, text_1=first, text_2=second), "score", timeout))


def _rows(
    session: Session, path: str, request: Mapping[str, Any], key: str, timeout: float | None
) -> Operation["Array"]:
    """Return `key` of each element of `data`, in the order of their index."""
    import numpy as np

    document = yield from _fetch(session, path, request, timeout)
    with reading(str(request.get("model") or session.url)):
        rows = sorted(document["data"], key=lambda each: int(each["index"]))
        return np.array([each[key] for each in rows], np.float32)


def _fetch(session: Session, path: str, request: Mapping[str, Any], timeout: float | None) -> Operation[dict[str, Any]]:
    reply = yield from session.call(timeout).post_json(path, request)
    return document_of(reply, str(request.get("model") or session.url))


def _complete(session: Session, path: str, document: Mapping[str, Any], timeout: float | None) -> Operation[Completion]:
    call = session.call(timeout)
    reply = yield from call.post_json(path, document)
    subject = str(document.get("model") or session.url)
    answer = document_of(reply, subject)
    with reading(subject):
        return _checked(answer, call)


def _checked(document: Mapping[str, Any], call: Call) -> Completion:
    completion = Completion(document, call.cold_start_s)
    completion.text, completion.usage.items()  # read once here, where an error has its subject
    return completion


def _stream(
    session: Session, path: str, document: Mapping[str, Any], timeout: float | None
) -> Operation[CompletionStream]:
    call = session.call(timeout)
    reply = yield from call.post_json(path, {**document, "stream": True}, stream=True)
    if reply.chunks is None:
        raise response_error(reply, str(document.get("model") or session.url))
    return CompletionStream(reply, call)


def _chat_request(messages: Messages, model: str, options: Mapping[str, Any]) -> dict[str, Any]:
    several = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
    return _request(model, options, messages=several)


def _request(model: str, options: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    return {**({"model": model} if model else {}), **fields, **options}
