"""Tool calls in generated text: the formats of the field, their grammars, and a parser for a stream of text.

A model's format follows from its chat template, which tells the model how to write a call. The names are those of
vLLM's parsers. What does not parse as a call stays text.
"""

import json
from collections.abc import Callable, Mapping
from secrets import token_hex
from typing import Any, Final, NamedTuple

import msgspec

from pilotlight_predictor.core.generation_params import ChatOptions, call_arguments


class ToolCallFormat(NamedTuple):
    """`sign`: text of a template in this format; a call is between `begin` and `end`, or all of the text."""

    name: str
    sign: str
    begin: str
    end: str
    opening: str  # before the JSON of the first call, between two, and after the last
    separator: str
    closing: str
    arguments: str = "arguments"


FORMATS: Final = (
    ToolCallFormat("mistral", "[TOOL_CALLS]", "[TOOL_CALLS]", "", "[", ", ", "]"),
    ToolCallFormat("hermes_list", "<tool_call>[", "<tool_call>", "</tool_call>", "[", ", ", "]"),
    ToolCallFormat("hermes", "<tool_call>", "<tool_call>", "</tool_call>", "\n", "", "\n"),
    ToolCallFormat("llama3_json", '"parameters": dictionary', "", "", "", "", "", "parameters"),
)
OTHER_FORMATS: Final = ("<function=", "<arg_key>", "[ARGS]")  # in templates with the same markers, but no JSON
ID_LENGTH: Final = 9  # Mistral's templates take letters and digits of this length only


def find_format(template: str) -> ToolCallFormat | None:
    if any(sign in template for sign in OTHER_FORMATS):
        return None
    return next((each for each in FORMATS if each.sign in template), None)


def call_grammar(form: ToolCallFormat, options: ChatOptions, literal: Callable[[str], str]) -> str:
    """Return Lark rules for `calls`; `literal` writes a marker, which may be a special token."""
    names = list(options.schemas)
    rules = [
        f'call{number}: {json.dumps(f"""{{"name": "{name}", "{form.arguments}": """)} arguments{number} "}}"\n'
        f"arguments{number}: {json_rule(schema)}"
        for number, (name, schema) in enumerate(options.schemas.items())
    ]
    any_call = " | ".join(f"call{number}" for number in range(len(names)))
    several = options.parallel and not options.named
    more = f" ({json.dumps(form.separator)} call)*" if several and form.separator else ""
    inner = f"{_quoted(form.opening)} call{more} {_quoted(form.closing)}"
    block = f"{literal(form.begin) if form.begin else ''} {inner} {literal(form.end) if form.end else ''}"
    again = ' ("\\n" block)*' if several and form.end and not form.separator else ""
    return "\n".join([f"calls: block{again}", f"block: {block}", f"call: {any_call}", *rules])


def json_rule(schema: Mapping[str, Any]) -> str:
    # Whitespace as in llama.cpp's grammars: unbounded, a weak model goes on with it up to max_tokens.
    return "%json " + json.dumps({**schema, "x-guidance": {"whitespace_pattern": r"( |\n[ \t]{0,20})"}})


def _quoted(text: str) -> str:
    return json.dumps(text) if text else ""


class ToolCallParser:
    """Parser of one choice's text. `count`: calls so far; `marked`: whether a call has a marker before it."""

    def __init__(self, form: ToolCallFormat, options: ChatOptions) -> None:
        self._form, self._names, self._parallel = form, frozenset(options.schemas), options.parallel
        self._held = ""
        self._inside = self._started = False
        self.marked = bool(form.begin)
        self.count = 0

    def push(self, text: str, *, last: bool = False) -> tuple[str, list[dict[str, Any]]]:
        """Add text; return the content and the calls that are complete. A marker that may begin is held back."""
        self._held += text
        content, calls = "", list[dict[str, Any]]()
        while self._held:
            if self._inside:
                body, end, after = self._held.partition(self._form.end) if self._form.end else (self._held, "", "")
                if not end and not last:
                    break
                found = self._read(body)
                content += "" if found is not None else f"{self._form.begin}{body}{end}"
                calls += found or ()
                self._held, self._inside = after, False
                continue
            begin = self._begin()
            self._inside = begin >= 0
            size = begin if self._inside else len(self._held) - (0 if last else self._partial())
            plain = self._held[:size]
            content += "" if self.count and not plain.strip() else plain
            self._started = self._started or bool(plain.strip())
            self._held = self._held[size + len(self._form.begin) * self._inside :]
            if not self._inside:
                break
        return content, calls

    def _begin(self) -> int:
        """Index of the next call; -1 if there is none."""
        if self._form.begin:
            return self._held.find(self._form.begin)
        return 0 if not self._started and self._held.lstrip().startswith("{") else -1

    def _partial(self) -> int:
        """Length of the end of the text that may be the beginning of a call."""
        begin = self._form.begin
        if not begin:
            return 0 if self._started or self._held.strip() else len(self._held)
        sizes = range(min(len(begin) - 1, len(self._held)), 0, -1)
        return next((size for size in sizes if begin.startswith(self._held[-size:])), 0)

    def _read(self, body: str) -> list[dict[str, Any]] | None:
        """Return the calls of a block; None if it does not parse."""
        try:
            value = msgspec.json.decode(body)
            rows = [_call(row) for row in (value if isinstance(value, list) else [value])]
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            return None
        if not rows or not all(row is not None and row["name"] in self._names for row in rows):
            return None
        rows = rows if self._parallel else rows[: 1 - min(self.count, 1)]
        first, self.count = self.count, self.count + len(rows)
        return [
            {"index": first + number, "id": token_hex(5)[:ID_LENGTH], "type": "function", "function": row}
            for number, row in enumerate(rows)
        ]  # fmt: skip


def _call(row: Any) -> dict[str, str] | None:
    if not isinstance(row, dict) or not isinstance(row.get("name"), str):
        return None
    arguments = call_arguments(row.get("arguments", row.get("parameters")))
    return None if arguments is None else {"name": row["name"], "arguments": json.dumps(arguments, ensure_ascii=False)}
