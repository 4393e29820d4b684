"""Redaction of logged bodies: JSON fields by name or path, texts by regular expression.

Patterns are RE2's: a search takes time linear in its text and does not hold the GIL.
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import re2

Json = Any
REDACTED: Final = "[redacted]"
STREAM_END: Final = "[DONE]"  # of OpenAI's streams, which is no JSON
EVENT_FIELDS: Final = ("", "data", "event", "id", "retry")
MAX_MATCHES: Final = 1000  # of a pattern in a text: each may search all the rest, which is quadratic even with RE2
_STEP: Final = re.compile(r"\.([^.*\[\]]+)|\[(\*|0|[1-9][0-9]*)\]")


class Redactor:
    """`fields`: key names at any depth, in any case, or paths from the root such as `$.messages[*].content`."""

    def __init__(self, fields: Iterable[str], patterns: Iterable[str]) -> None:
        self._names = {name.lower() for name in fields if not name.startswith("$")}
        paths = (_STEP.finditer(path) for path in fields if path.startswith("$"))
        self._paths = [tuple(step[1] or f"[{step[2]}]" for step in path) for path in paths]
        self._patterns = [compiled(pattern) for pattern in patterns]

    @property
    def rules(self) -> bool:
        return bool(self._names or self._paths or self._patterns)

    def text(self, text: str) -> str:
        """Return a text without what the patterns match; with more than MAX_MATCHES of one, nothing of it."""
        if self._patterns:
            text = text.encode(errors="replace").decode()  # RE2 refuses half a surrogate pair
        for pattern in self._patterns:
            text, matches = pattern.subn(REDACTED, text, count=MAX_MATCHES + 1)
            if matches > MAX_MATCHES:
                return REDACTED
        return text

    def body(self, text: str) -> str:
        """Return a JSON document, or any other text, redacted. Fields of what is no JSON here could still be read."""
        try:
            document = json.loads(text)
        except RecursionError:
            return REDACTED
        except ValueError:
            return REDACTED if self._names or self._paths else self.text(text)
        for path in self._paths:
            document = _redact_path(document, path)
        return json.dumps(self._walk(document), ensure_ascii=False)

    def stream(self, text: str, *, cut: bool) -> str:
        """Return server-sent events, each redacted by itself; the last line of a cut stream is left out."""
        lines = text.split("\n")
        return "\n".join(self._stream_lines(lines[:-1] if cut else lines))

    def _stream_lines(self, lines: Iterable[str]) -> Iterator[str]:
        for line in lines:
            name, colon, value = line.partition(":")
            if name == "data" and colon and value.strip() != STREAM_END:
                yield f"data: {self.body(value.strip())}"
            else:  # a line that is no field of an event may be read as JSON
                yield self.text(line) if name.strip() in EVENT_FIELDS else self.body(line)

    def _walk(self, value: Json) -> Json:
        if isinstance(value, dict):
            return {
                self.text(key): REDACTED if key.lower() in self._names else self._walk(each)
                for key, each in value.items()
            }
        if isinstance(value, list):
            return [self._walk(each) for each in value]
        if isinstance(value, bool) or value is None:
            return value
        redacted = self.text(str(value))  # numbers too: a card number need not be a string
        return redacted if isinstance(value, str) or REDACTED in redacted else value


def compiled(pattern: str) -> "re2._Regexp":
    """Return a pattern for use by `Redactor`. Raise ValueError with the reason."""
    import re2  # with the first pattern only

    options = re2.Options()
    options.log_errors = False  # to stderr
    try:
        return re2.compile(pattern, options=options)
    except re2.error as error:
        raise ValueError(error.args[0].decode(errors="replace")) from None
    except UnicodeEncodeError:
        raise ValueError("it has half a surrogate pair") from None


def is_field(field: str) -> bool:
    """Whether a field is a key, or from `$` a path of keys, `[*]` and `[0]`. Other syntax would match nothing."""
    if field.startswith("$"):
        return bool(re.fullmatch(rf"\$(?:{_STEP.pattern})+", field))
    return bool(re.fullmatch(r"[^\s/.*\[\]](?:[^.*\[\]]*[^\s.*\[\]])?", field))


def _redact_path(value: Json, steps: tuple[str, ...]) -> Json:
    if not steps:
        return REDACTED
    step, rest = steps[0], steps[1:]
    if isinstance(value, dict) and step in value:
        return {**value, step: _redact_path(value[step], rest)}
    if isinstance(value, list) and step.startswith("["):
        return [_redact_path(each, rest) if step in ("[*]", f"[{index}]") else each for index, each in enumerate(value)]
    return value
