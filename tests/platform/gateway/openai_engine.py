"""An engine with OpenAI's chat API that repeats the model it was asked for, and requests to it."""

import hashlib
import json
from typing import Any

from tests.platform.gateway.bed import (
    Reader,
    Seen,
    Writer,
    answer,
)  # fmt: skip

from pilotlight.wire.service_access import Access

SECRET = Access(tokens=(hashlib.sha256(b"secret").hexdigest(),))


CHAT = "/v1/chat/completions"
LORA, NO_LORA = '"lora":[{"id":0,"scale":1.0}]', '"lora":[{"id":0,"scale":0.0}]'


async def engine(seen: Seen, reader: Reader, writer: Writer) -> None:
    """Answers as an engine that repeats the model that it got, streamed where the request is for a stream."""
    body = json.loads(seen.body)
    chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": body.get("model")}
    if body.get("stream"):
        choices = [{"index": 0, "delta": {"content": word}, "finish_reason": None} for word in ("hello ", "there")]
        events = [json.dumps({**chunk, "choices": [each]}) for each in choices]
        pieces = [f"data: {event}\n\n".encode() for event in [*events, "[DONE]"]]
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n")
        return
    message = {"role": "assistant", "content": "hello"}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
    whole = {**chunk, "object": "chat.completion", "choices": [choice], "usage": usage}
    await answer(writer, json.dumps(whole).encode(), "Content-Type: application/json")


def body_of(model: str | None, **fields: Any) -> bytes:
    return json.dumps({"messages": [], **fields} | ({"model": model} if model is not None else {})).encode()
