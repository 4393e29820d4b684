"""JSON of an API server that is nested deeper than Python can read, cut to what it can.

An API server stores 10,000 levels, and one such object must not end a process that lists or watches all of them.
"""

import re
from typing import Final

MAX_DEPTH: Final = 200
READABLE: Final = 900  # closing brackets that no nesting of them exceeds the interpreter's stack with
CUT: Final = b'"nested too deeply"'
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]')


def may_be_deep(text: bytes) -> bool:
    """Whether the text has enough brackets to be unreadable; fast."""
    return text.count(b"}") + text.count(b"]") > READABLE


def without_deep_values(text: bytes) -> bytes:
    """Return valid JSON with a text in place of each value that is nested deeper than MAX_DEPTH."""
    pieces, depth, start = [], 0, 0
    for token in _TOKEN.finditer(text):
        if token[0] in (b"[", b"{"):
            depth += 1
            if depth == MAX_DEPTH + 1:
                pieces += [text[start : token.start()], CUT]
        elif token[0] in (b"]", b"}"):
            if depth == MAX_DEPTH + 1:
                start = token.end()
            depth -= 1
    return b"".join([*pieces, text[start:]])
