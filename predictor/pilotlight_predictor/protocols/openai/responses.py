"""The Responses API of the OpenAI protocol: its request as a chat, and its bodies and events. Pure.

Nothing is stored: a client sends the whole conversation each time.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.core.generation_params import BadField
from pilotlight_predictor.protocols.json_values import dump_json
from pilotlight_predictor.protocols.openai.request import MAX_PARTS, TextRequest, read_chat, reject_unsupported
from pilotlight_predictor.protocols.openai.response import ChoiceDelta

# Not supported; the values that have no effect are accepted.
UNSUPPORTED: Final[Mapping[str, tuple[Any, ...]]] = {
    "previous_response_id": (), "conversation": (), "background": (False,), "prompt": (), "include": ([],),
    "reasoning": (), "truncation": ("disabled",), "max_tool_calls": (), "top_logprobs": (0,), "stream_options": (),
}  # fmt: skip
PASSED: Final = ("model", "temperature", "top_p", "stream", "parallel_tool_calls")
ECHOED: Final = ("instructions", "metadata", "temperature", "top_p", "max_output_tokens", "tool_choice", "text")
TEXT_PARTS: Final = ("input_text", "output_text", "text")
# Names of a chat's fields → those of this API, in errors.
RENAMED: Final = (
    ("response_format.json_schema", "text.format"), ("response_format", "text.format"), ("].function", "]"),
    ("tool_choice.function", "tool_choice"), ("messages", "input"), ("max_tokens", "max_output_tokens"),
    ('"function": {…}', '"name": …'),
)  # fmt: skip


def read_response_request(document: dict[str, Any]) -> TextRequest:
    fields = {name: value for name, value in document.items() if value is not None}
    echoed = {name: fields[name] for name in ECHOED if name in fields}
    tools, choice = fields.pop("tools", []), fields.pop("tool_choice", None)
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise BadField("tools", "tools must be a list of functions")
    chat: dict[str, Any] = {name: fields.pop(name) for name in PASSED if name in fields}
    chat |= {"messages": _messages(fields), "max_tokens": fields.pop("max_output_tokens", None)}
    chat |= {"tools": [_chat_form(tool) for tool in tools], "response_format": _format(fields.pop("text", {}))}
    chat["tool_choice"] = _chat_form(choice) if isinstance(choice, dict) else choice
    reject_unsupported(fields, UNSUPPORTED)
    parallel = chat.get("parallel_tool_calls", True)
    return msgspec.structs.replace(read_chat(chat), echoed={"parallel_tool_calls": parallel, "tools": tools, **echoed})


def renamed(error: BadField) -> BadField:
    """Return an error about a chat's field, changed to the name that the field has here."""
    message = str(error)
    for name, here in RENAMED:
        error.field, message = error.field.replace(name, here), message.replace(name, here)
    error.args = (message,)
    return error


def _chat_form(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool or a tool_choice with the function's fields in an object of their own."""
    return {"type": item.get("type"), "function": {name: value for name, value in item.items() if name != "type"}}


def _format(text: Any) -> Any:
    form = text.get("format") if isinstance(text, dict) and text.keys() <= {"format"} else text or None
    if not isinstance(form, dict | None) or form is text is not None:
        raise BadField("text", "text must be an object with format alone")
    if form is None or form.get("type") != "json_schema":
        return form
    return {"type": "json_schema", "json_schema": {name: value for name, value in form.items() if name != "type"}}


def _messages(fields: dict[str, Any]) -> list[dict[str, Any]]:
    instructions, items = fields.pop("instructions", None), fields.pop("input", None)
    if not isinstance(instructions, str | None):
        raise BadField("instructions", "instructions must be text")
    messages = [{"role": "system", "content": instructions}] if instructions else []
    if isinstance(items, str):
        return [*messages, {"role": "user", "content": items}]
    if not isinstance(items, list) or not items or len(items) > MAX_PARTS:
        raise BadField("input", f"input must be text or a list of 1 to {MAX_PARTS} items")
    for index, item in enumerate(items):
        message = _message(f"input[{index}]", item)
        if "tool_calls" in message and messages and "tool_calls" in messages[-1]:
            messages[-1]["tool_calls"] += message["tool_calls"]
        else:
            messages.append(message)
    return messages


def _message(at: str, item: Any) -> dict[str, Any]:
    item = item if isinstance(item, dict) else {}
    kind = item.get("type", "message")
    if kind == "function_call" and isinstance(item.get("name"), str):
        function = {"name": item["name"], "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    if kind == "function_call_output" and isinstance(item.get("call_id"), str):
        return {"role": "tool", "tool_call_id": item["call_id"], "content": _content(at, item.get("output"))}
    if kind != "message" or not isinstance(item.get("role"), str):
        kinds = "function_call with a name or function_call_output with a call_id"
        raise BadField(at, f"{at} must be a message with role and content, a {kinds}")
    return {"role": item["role"], "content": _content(at, item.get("content"))}


def _content(at: str, content: Any) -> Any:
    if isinstance(content, str):
        return content
    parts = []
    for part in content if isinstance(content, list) else [None]:
        part = part if isinstance(part, dict) else {}
        kind = part.get("type")
        if kind in TEXT_PARTS and isinstance(part.get("text"), str):
            parts.append({"type": "text", "text": part["text"]})
        elif kind == "input_image":
            parts.append({"type": "image_url", "image_url": {"url": part.get("image_url")}})
        else:
            raise BadField(at, f"{at} must have text, or a list of parts input_text, output_text or input_image")
    return parts


class ResponseBodies:
    """Bodies of one response: `whole`, or `opening` and then events of each delta. There is one choice."""

    def __init__(self, echoed: Mapping[str, Any], identity: str, created: int, model: str, include_usage: bool) -> None:
        self._identity = identity
        self._head = {"id": f"resp_{identity}", "object": "response", "created_at": created, "model": model}
        self._echoed = {"tool_choice": "auto", **echoed}
        self._items: list[dict[str, Any]] = []
        self._text: str | None = None  # of the last item, while it is a message that goes on
        self._finish = ""
        self._sequence = 0

    def whole(self, choices: Sequence[ChoiceDelta], usage: dict[str, int] | None) -> list[Buffer]:
        for choice in choices:
            self.chunk(choice)
        return [dump_json(self._response(self._status(), usage))]

    def opening(self, index: int) -> bytes:
        response = self._response("in_progress", None)
        return b"".join(self._event(f"response.{name}", response=response) for name in ("created", "in_progress"))

    def chunk(self, delta: ChoiceDelta) -> bytes:
        events = []
        if delta.text:
            if self._text is None:
                events += self._open_message()
            self._text = (self._text or "") + delta.text
            events.append(self._part_event("output_text.delta", delta=delta.text, logprobs=[]))
        for call in delta.tool_calls:
            events += [*self._close_message("completed"), *self._call(call)]
        self._finish = delta.finish or self._finish
        if delta.finish:
            events += self._close_message(self._status())
        return b"".join(events)

    def last(self, usage: dict[str, int] | None) -> bytes:
        status = self._status()
        return self._event(f"response.{status}", response=self._response(status, usage))

    def _open_message(self) -> list[bytes]:
        item_id = f"msg_{self._identity}_{len(self._items)}"
        item = {"id": item_id, "type": "message", "role": "assistant", "status": "in_progress", "content": []}
        self._items.append(item)
        return [self._item_event("added", item), self._part_event("content_part.added", part=_part(""))]

    def _close_message(self, status: str) -> list[bytes]:
        if self._text is None:
            return []
        part, self._text = _part(self._text), None
        self._items[-1] |= {"status": status, "content": [part]}
        done = self._part_event("output_text.done", text=part["text"], logprobs=[])
        return [done, self._part_event("content_part.done", part=part), self._item_event("done", self._items[-1])]

    def _call(self, call: Mapping[str, Any]) -> list[bytes]:
        function, item_id = call["function"], f"fc_{self._identity}_{len(self._items)}"
        item = {"id": item_id, "type": "function_call", "call_id": call["id"], "name": function["name"]}
        self._items.append({**item, "status": "completed", "arguments": function["arguments"]})
        place = {"item_id": item_id, "output_index": len(self._items) - 1}
        delta, done = (f"response.function_call_arguments.{name}" for name in ("delta", "done"))
        return [
            self._item_event("added", {**item, "status": "in_progress", "arguments": ""}),
            self._event(delta, **place, delta=function["arguments"]),
            self._event(done, **place, name=function["name"], arguments=function["arguments"]),
            self._item_event("done", self._items[-1]),
        ]

    def _status(self) -> str:
        return "incomplete" if self._finish == "length" else "completed"

    def _response(self, status: str, usage: Mapping[str, int] | None) -> dict[str, Any]:
        reason = {"reason": "max_output_tokens"} if status == "incomplete" else None
        state = {"status": status, "error": None, "incomplete_details": reason, "output": self._items}
        return {**self._head, **self._echoed, **state, "usage": usage and _usage(usage)}

    def _item_event(self, name: str, item: Mapping[str, Any]) -> bytes:
        return self._event(f"response.output_item.{name}", output_index=len(self._items) - 1, item=item)

    def _part_event(self, name: str, **fields: Any) -> bytes:
        place = {"item_id": self._items[-1]["id"], "output_index": len(self._items) - 1, "content_index": 0}
        return self._event(f"response.{name}", **place, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._sequence += 1
        document = {"type": kind, "sequence_number": self._sequence - 1, **fields}
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), dump_json(document))


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(usage: Mapping[str, int]) -> dict[str, Any]:
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage["total_tokens"],
    }
