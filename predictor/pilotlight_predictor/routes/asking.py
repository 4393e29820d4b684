"""One inference for a handler: it is queued and counted, and answered when the model has answered.

Between a dialect's decoder and its encoder, for the dialects that ask in the plain way. V2 has its own in v2_infer.py,
which packs answers and is the hottest of all.
"""

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import Final

from pilotlight.contract import HEADER_REQUEST_ID
from pilotlight_predictor.calls import Call, Reply
from pilotlight_predictor.dispatch import Dialect, error_reply
from pilotlight_predictor.errors import Cancelled
from pilotlight_predictor.inference import InferRequest, InferResponse
from pilotlight_predictor.served import ServedVersion
from pilotlight_predictor.server import Server

MANY: Final = 1 << 16  # elements; more of them are no work for the event loop when each is written as text
Encode = Callable[[InferResponse], Reply]
_ENCODING: set[asyncio.Task[None]] = set()  # the loop itself holds tasks only weakly


def ask(
    server: Server,
    call: Call,
    served: ServedVersion,
    request: InferRequest,
    dialect: Dialect,
    encode: Encode,
    *,
    as_text: bool = False,
    finish: Callable[[Reply], None] | None = None,
) -> None:
    """Raises at once what refuses the request; else `finish` (the call's, unless given) gets one reply, later.

    `as_text`: the encoder writes each element out, so a long answer is encoded in a thread.
    """
    request.request_id = call.headers.get(HEADER_REQUEST_ID, "")
    finish = finish or call.finish

    def answer(reply: Reply) -> None:
        server.observe(served, dialect.name, reply.status, perf_counter() - call.started)
        finish(reply)

    def reply_to(result: InferResponse | Exception) -> Reply:
        if isinstance(result, Exception):
            return error_reply(dialect.error_body, result, call)
        try:
            return encode(result)
        except Exception as error:
            return error_reply(dialect.error_body, error, call)

    def done(result: InferResponse | Exception) -> None:
        call.on_abandon = None
        if as_text and isinstance(result, InferResponse) and _is_long(result):
            task = asyncio.get_running_loop().create_task(_answer_later(server, lambda: reply_to(result), answer))
            _ENCODING.add(task)
            task.add_done_callback(_ENCODING.discard)
        else:
            answer(reply_to(result))

    _submit(server, call, served, request, done)


def _submit(
    server: Server,
    call: Call,
    served: ServedVersion,
    request: InferRequest,
    done: Callable[[InferResponse | Exception], None],
) -> None:
    server.metrics.in_flight += 1
    try:
        ticket = served.infer(request, done, server.limits)
    except Exception:
        server.metrics.in_flight -= 1  # the dispatcher counts what is refused
        raise
    call.on_abandon = ticket.cancel


def _is_long(response: InferResponse) -> bool:
    return sum(tensor.array.size for tensor in response.outputs.values()) > MANY


async def _answer_later(server: Server, make: Callable[[], Reply], answer: Callable[[Reply], None]) -> None:
    answer(await server.codecs.run(make))


async def reply_of(call: Call, start: Callable[[Callable[[Reply], None]], None]) -> Reply:
    """For a handler that had to wait before it could ask: `start` is given what takes the reply."""
    if call.abandoned:
        raise Cancelled("the client has gone")
    reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    start(reply.set_result)
    return await reply
