"""Asks one server by HTTP and gives the parts of its answer that are compared: aspect → value.

What says when or how often something happened (statistics) is reduced to its kind, for it differs by nature.
"""

import json
import socket
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tests.differential.case import HttpCase
from tests.serving import Answer, read_answer, rendered

HEADERS: Final = ("content-type", "inference-header-content-length", "content-encoding", "allow", "accept-encoding")
Aspects = dict[str, Any]


def ask_http(port: int, method: str, path: str, body: Any = b"", headers: Mapping[str, str] | None = None) -> Answer:
    raw = rendered(method, path, body, headers, f"127.0.0.1:{port}")
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(raw)
        return read_answer(connection, method)


def http_aspects(case: HttpCase, port: int) -> Aspects:
    """status, each header that clients read, and the body: field by field where it is JSON."""
    answer = ask_http(port, case.method, case.path, case.body, case.headers)
    told = {name: answer.headers[name] for name in HEADERS if name in answer.headers}
    found: Aspects = {"status": answer.status}
    if answer.status >= 400:
        return {**found, **{f"error.{name}": value for name, value in told.items()}, "error": _sentence(answer.body)}
    found |= told
    text, blob = _divided(answer)
    if case.kinds_only:
        text = json.dumps(kinds(json.loads(text))).encode()
    return {**found, **dict(fields("body", _document(text))), "blob": blob}


def fields(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    """body.outputs[0].data and the like; a list of plain values is one of them."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from fields(f"{place}.{key}", inner)
    elif isinstance(value, list) and any(isinstance(inner, (dict, list)) for inner in value):
        for index, inner in enumerate(value):
            yield from fields(f"{place}[{index}]", inner)
    else:
        yield place, value


def kinds(value: Any) -> Any:
    """The same document with the name of its kind for every number, and each kind of a list's items once: how many
    sizes of batches were run is a matter of timing."""
    if isinstance(value, dict):
        return {key: kinds(inner) for key, inner in value.items()}
    if isinstance(value, list):
        found: list[Any] = []
        for inner in map(kinds, value):
            found += [inner] if inner not in found else []
        return found
    return value if isinstance(value, str) else type(value).__name__


def _divided(answer: Answer) -> tuple[bytes, bytes]:
    """What is JSON, and the tensors behind it; packed bodies are compared as what they hold."""
    if packed := answer.headers.get("content-encoding"):
        return zlib.decompress(answer.body, 47), packed.encode()
    length = int(answer.headers.get("inference-header-content-length", len(answer.body)))
    return answer.body[:length], answer.body[length:]


def _sentence(body: bytes) -> Any:
    document = _document(body)
    return document.get("error", document) if isinstance(document, dict) else document


def _document(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
