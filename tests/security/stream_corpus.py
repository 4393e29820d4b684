"""Malformed inputs of streams: messages of ModelStreamInfer, messages and frames of WebSockets. The same for a seed."""

import struct
from collections.abc import Iterator
from random import Random
from typing import Any

from tests.security import corpus
from tests.security.corpus import Fields
from tests.serving import bytes_blob

TEXT, BINARY, CLOSE, PING = 1, 2, 8, 9
_PARTS: Fields = [(1, "parts"), (5, [(1, "x"), (2, "BYTES"), (3, 3)]), (7, bytes_blob(b"a", b"", b"\xff\0"))]


def _parameter(name: str, kind: int, value: Any) -> tuple[int, Any]:
    return 4, [(1, name), (2, [(kind, value)])]


# Valid messages of ModelStreamInfer: those of ModelInfer, and those that a decoupled model answers several times.
STREAMED: list[Fields] = [
    *(fields for method, fields in corpus.MESSAGES if method.endswith("/ModelInfer")),
    _PARTS,
    [*_PARTS, _parameter("triton_enable_empty_final_response", 1, 1), (3, "id")],
    [*_PARTS, _parameter("sequence_id", 2, 7), _parameter("sequence_start", 1, 1), _parameter("sequence_end", 1, 1)],
    [*_PARTS, _parameter("timeout", 2, 10**6), _parameter("priority", 5, 1), _parameter("x", 4, 1)],
]


def streams(count: int, seed: int) -> Iterator[list[bytes]]:
    """Messages of one stream each, some of them valid, some with fields or bytes changed."""
    random = Random(f"streams {seed}")
    for _ in range(count):
        messages = []
        for _ in range(random.choice([0, 1, 1, 2, 3, 8])):
            message = corpus.encoded(corpus.changed(random, random.choice(STREAMED)))
            messages.append(corpus.spliced(random, message) if random.random() < 0.2 else message)
        yield messages


def websocket_messages(count: int, seed: int) -> Iterator[tuple[int, bytes]]:
    """Opcode and payload of messages whose frames are right."""
    random = Random(f"websocket messages {seed}")
    for _ in range(count):
        _, document = random.choice(corpus.SEEDS["predict"])
        yield random.choice([TEXT, TEXT, TEXT, BINARY]), corpus.malformed_text(random, document)


def frame(opcode: int, payload: bytes, *, first: int = 0x80, masked: bool = True) -> bytes:
    """A WebSocket frame of a client; `first` has the FIN and RSV bits."""
    size, mask = len(payload), b"\x12\x34\x56\x78" if masked else b""
    length = (
        struct.pack(">B", size)
        if size < 126
        else struct.pack(">BH" if size < 65536 else ">BQ", 126 + (size > 65535), size)
    )
    head = bytes([first | opcode, length[0] | (0x80 if masked else 0)]) + length[1:]
    return head + mask + (bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload)) if masked else payload)


def websocket_frames(count: int, seed: int) -> Iterator[bytes]:
    """Bytes after a handshake: frames in any order, with bits, opcodes and lengths that are wrong."""
    random = Random(f"websocket frames {seed}")
    text = b'{"inputs": [1, 0, 1], "model_name": "floats"}'
    scripts: list[list[tuple[int, int, bytes]]] = [
        [(0x80, TEXT, text), (0x80, CLOSE, struct.pack(">H", 1000))],
        [(0, TEXT, text[:9]), (0x80, PING, b"p"), (0x80, 0, text[9:])],
        [(0x80, BINARY, text), (0x80, 10, b""), (0x80, CLOSE, b"")],
        [(0x80, PING, bytes(125)), (0x80, TEXT, "é".encode() * 100)],
    ]  # fmt: skip
    for _ in range(count):
        script = list(random.choice(scripts))
        raw = []
        for _ in range(random.randint(1, 3)):
            at = random.randrange(len(script))
            first, opcode, payload = script[at]
            change = random.randrange(6)
            if change == 0:
                first = random.choice([0, 0x80, 0xC0, 0xA0, 0xF0, 0x70])
            elif change == 1:
                opcode = random.choice(range(16))
            elif change == 2:
                payload = random.choice([b"", b"\xff", b"\x03", struct.pack(">H", 999), bytes(126), bytes(70_000)])
            elif change == 3:
                payload = corpus.spliced(random, payload)
            elif change == 4:
                script.insert(at, random.choice(random.choice(scripts)))
                continue
            elif len(script) > 1:
                del script[at]
                continue
            script[at] = (first, opcode, payload)
        for first, opcode, payload in script:
            piece = frame(opcode, payload, first=first, masked=random.random() > 0.05)
            if random.random() < 0.1:  # a length that lies
                lie = random.choice([b"\xfe\xff\xff", b"\xff" + struct.pack(">Q", 2**63), b"\xff" + bytes(8), b"\xfd"])
                piece = piece[:1] + lie + piece[2:]
            raw.append(piece)
        whole = b"".join(raw)
        yield whole[: random.randint(0, len(whole))] if random.random() < 0.1 else whole
