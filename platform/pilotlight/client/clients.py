"""Client and AsyncClient: the same operations, run on a blocking transport or on asyncio."""

import asyncio
import inspect
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import aclosing, closing
from functools import update_wrapper
from typing import Any, Concatenate, Final, Generic, NamedTuple, ParamSpec, Self, TypeVar, get_args

from pilotlight.client import inference, openai
from pilotlight.client.openai import Completion, CompletionStream
from pilotlight.client.session import Lost, NotSent, Operation, Pause, Reply, Request, Session, session_of
from pilotlight.client.transports import AsyncioTransport, BlockingTransport

P = ParamSpec("P")
T = TypeVar("T")
TransportT = TypeVar("TransportT")
MethodT = TypeVar("MethodT", bound=Callable[..., Any])
TIMEOUT_S: Final = 300.0  # a cold start may take minutes
RETRIES: Final = 3
FAILURES: Final = (NotSent, Lost, TimeoutError)  # of a transport: the operation decides
Verify = bool | str | ssl.SSLContext


class _BaseClient(Generic[TransportT]):
    """Arguments of both clients.

    url      of a service through the gateway (http://127.0.0.1:8090/iris), or of any V2 or OpenAI server; https and
             unix: work too
    token    bearer token of the service
    timeout  seconds for a whole call, cold start and retries included
    retries  how often a call is retried after a failed connection, and after 429 or 503 with Retry-After. A server
             that starts is waited for until the deadline, unless this is 0. What may have been executed is not retried.
    headers  sent with every request
    verify   of https: a CA file or folder, an SSLContext, or False to trust any certificate
    binary   send and request tensors as memory; False: as JSON, for servers without the binary extension
    """

    def __init__(
        self, url: str, *, token: str | None = None, timeout: float = TIMEOUT_S, retries: int = RETRIES,
        headers: Mapping[str, str] | None = None, verify: Verify = True, binary: bool = True,
    ) -> None:  # fmt: skip
        self._session = session_of(url, token=token, timeout=timeout, retries=retries, headers=headers, binary=binary)
        self._transport = self._new_transport(url, _ssl_context(verify) if url.startswith("https:") else None)

    _new_transport: Callable[[str, ssl.SSLContext | None], TransportT]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._session.url!r})"


def _ssl_context(verify: Verify) -> ssl.SSLContext:
    if isinstance(verify, ssl.SSLContext):
        return verify
    context = ssl.create_default_context()
    if isinstance(verify, str):
        context.load_verify_locations(verify)
    elif not verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _described(method: MethodT, operation: Callable[..., Any], result: Any = None) -> MethodT:
    """Give a method name, docstring and signature of its operation, with self and the type of its own result."""
    update_wrapper(method, operation)
    signature = inspect.signature(operation)
    result = result or get_args(signature.return_annotation)[-1]
    _, *parameters = signature.parameters.values()
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    signature = signature.replace(parameters=[own, *parameters], return_annotation=result)
    method.__signature__ = signature  # type: ignore[attr-defined]
    return method


def _blocking(operation: Callable[Concatenate[Session, P], Operation[T]]) -> "Callable[Concatenate[Client, P], T]":
    def method(client: "Client", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return client._run(operation(client._session, *args, **kwargs))

    return _described(method, operation)


def _blocking_stream(
    operation: Callable[Concatenate[Session, P], Operation[CompletionStream]],
) -> "Callable[Concatenate[Client, P], Iterator[Completion]]":
    def method(client: "Client", /, *args: P.args, **kwargs: P.kwargs) -> Iterator[Completion]:
        stream = client._run(operation(client._session, *args, **kwargs))
        with closing(stream.reply.chunks):
            try:
                yield from stream.feed(stream.reply.body)
                for chunk in stream.reply.chunks:
                    yield from stream.feed(chunk)
            except (Lost, TimeoutError) as error:
                raise stream.call.failure(error) from None
            stream.end()

    return _described(method, operation, Iterator[Completion])


def _asynchronous(
    operation: Callable[Concatenate[Session, P], Operation[T]],
) -> "Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]":
    async def method(client: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await client._run(operation(client._session, *args, **kwargs))

    return _described(method, operation)


def _asynchronous_stream(
    operation: Callable[Concatenate[Session, P], Operation[CompletionStream]],
) -> "Callable[Concatenate[AsyncClient, P], AsyncIterator[Completion]]":
    async def method(client: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[Completion]:
        stream = await client._run(operation(client._session, *args, **kwargs))
        async with aclosing(stream.reply.chunks):
            try:
                for part in stream.feed(stream.reply.body):
                    yield part
                async for chunk in stream.reply.chunks:
                    for part in stream.feed(chunk):
                        yield part
            except (Lost, TimeoutError) as error:
                raise stream.call.failure(error) from None
            stream.end()

    return _described(method, operation, AsyncIterator[Completion])


class Done(NamedTuple, Generic[T]):
    """End of an operation."""

    result: T


def _advance(operation: Operation[T], outcome: "Reply | Exception | None") -> "Request | Pause | Done[T]":
    """Give an operation the outcome of its last step, None at first and after a pause; return its next step."""
    try:
        return operation.throw(outcome) if isinstance(outcome, Exception) else operation.send(outcome)
    except StopIteration as end:
        return Done(end.value)


class Client(_BaseClient[BlockingTransport]):
    """Client of a model server, for scripts and notebooks. Threads may share one: each call has its own connection."""

    _new_transport = BlockingTransport

    infer = _blocking(inference.infer)
    metadata = _blocking(inference.metadata)
    ready = _blocking(inference.ready)
    models = _blocking(inference.models)
    chat = _blocking(openai.chat)
    stream_chat = _blocking_stream(openai.stream_chat)
    complete = _blocking(openai.complete)
    stream_complete = _blocking_stream(openai.stream_complete)
    embed = _blocking(openai.embed)
    rerank = _blocking(openai.rerank)
    score = _blocking(openai.score)

    def _run(self, operation: Operation[T]) -> T:
        outcome: Reply | Exception | None = None
        while not isinstance(step := _advance(operation, outcome), Done):
            try:
                outcome = None if isinstance(step, Pause) else self._transport.send(step)
                if isinstance(step, Pause):
                    time.sleep(step.seconds)
            except FAILURES as error:
                outcome = error
        result: T = step.result
        return result

    def close(self) -> None:
        """Close idle connections; the next call opens new ones."""
        self._transport.drop_idle()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient(_BaseClient[AsyncioTransport]):
    """The same on asyncio: await its methods, `async for` its streams. It belongs to the loop of its first call."""

    _new_transport = AsyncioTransport

    infer = _asynchronous(inference.infer)
    metadata = _asynchronous(inference.metadata)
    ready = _asynchronous(inference.ready)
    models = _asynchronous(inference.models)
    chat = _asynchronous(openai.chat)
    stream_chat = _asynchronous_stream(openai.stream_chat)
    complete = _asynchronous(openai.complete)
    stream_complete = _asynchronous_stream(openai.stream_complete)
    embed = _asynchronous(openai.embed)
    rerank = _asynchronous(openai.rerank)
    score = _asynchronous(openai.score)

    async def _run(self, operation: Operation[T]) -> T:
        outcome: Reply | Exception | None = None
        while not isinstance(step := _advance(operation, outcome), Done):
            try:
                outcome = None if isinstance(step, Pause) else await self._transport.send(step)
                if isinstance(step, Pause):
                    await asyncio.sleep(step.seconds)
            except FAILURES as error:
                outcome = error
        result: T = step.result
        return result

    async def close(self) -> None:
        """Close idle connections; the next call opens new ones."""
        self._transport.drop_idle()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
