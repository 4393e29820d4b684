"""Malformed inputs of every protocol: valid requests with places of their structure changed, the same ones for a seed.

What is changed: types, sizes, nesting, numbers, encodings, lengths that lie, headers, paths, the bytes themselves; and
inputs are cut short. Most stay close to a valid request, so that they get past the first checks.
"""

import gzip
import json
import struct
import zlib
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple

from tests.serving import binary_body, bytes_blob, json_tensor, rendered

from pilotlight.wire.http2 import frames
from pilotlight.wire.http2.hpack import literal
from pilotlight.wire.protobuf import delimited, tag, varint

HOST = "localhost"
DATATYPES = ["BOOL", "UINT8", "INT8", "INT64", "UINT64", "FP16", "FP32", "FP64", "BYTES", "BF16", "fp32", ""]
NUMBERS = [0, -1, 1, 3, 255, 2**31 - 1, 2**31, 2**32, 2**60 + 2, 2**62, 2**63, 2**64, 10**400, 1.5, 1e308, -0.0]
WORDS = ["x", "y", "a", "b", "", "NaN", "-Infinity", "../../etc/passwd", "a\0b", "\ud800", "é" * 300, "1", "null"]
KEYS = [
    "name", "shape", "datatype", "data", "parameters", "inputs", "outputs", "id", "binary_data_size", "binary_data",
    "classification", "priority", "timeout", "binary_data_output", "sequence_id", "sequence_start", "instances", "b64",
    "x", "model", "messages", "content", "stream", "n", "max_tokens", "batch", "", "triton_x",
    "shared_memory_region",
]  # fmt: skip
SPLICES = [b"[" * 200, b"{" * 200, b"\r\n", b'"', b"NaN", b"\\ud800", b"{}", b"1e999", b"-", b"\0", b"\xff", b"9" * 400]
LENGTHS = ["0", "", "1", "7", "99999999999", "9" * 30, "1e2", "0x5", "+1", "-1", " 7", "\xb2"]
HEADERS = {
    "Content-Encoding": ["gzip", "deflate", "br", "identity", "gzip, gzip", ""],
    "Accept-Encoding": ["gzip", "*;q=0", "gzip;q=x"],
    "Content-Type": ["text/plain", "application/octet-stream", "multipart/form-data; boundary=" + "b" * 500, ""],
    "Inference-Header-Content-Length": LENGTHS,
    "Expect": ["100-continue", "200-ok"],
    "traceparent": ["00-" + "0" * 32, "ff", "\xff"],
    "X-Request-Id": ["a" * 3000, "\xe9", ""],
    "X-Forwarded-For": ["::1, 127.0.0.1", "evil"],
    "Accept": ["text/event-stream", "application/x-protobuf"],
}


class Request(NamedTuple):
    """A request whose framing is right: whatever the rest is like, it has an answer."""

    path: str
    headers: dict[str, str]
    body: bytes

    def render(self, chunked: bool = False) -> bytes:
        return rendered("POST", self.path, self.body, self.headers, HOST, chunked=chunked)


def _v2(model: str, verb: str = "infer") -> str:
    return f"/v2/models/{model}/{verb}"


_CHAT, _USER = "/v1/chat/completions", {"role": "user", "content": "hi"}
# Valid requests of the protocols with JSON bodies: path and document.
SEEDS: dict[str, list[tuple[str, Any]]] = {
    "V1": [
        ("/v1/models/floats:predict", {"inputs": {"x": [1, 2]}, "signature_name": "serving_default"}),
        ("/v1/models/floats:predict", {"inputs": [1, 2.5]}),
        ("/v1/models/texts:predict", {"inputs": ["a", {"b64": "YWI="}]}),
        ("/v1/models/flags:predict", {"inputs": [True, False]}),
        ("/v1/models/add_sub:predict", {"instances": [{"a": [1] * 4, "b": [1] * 4}, {"a": [1] * 4, "b": [2] * 4}]}),
        ("/v1/models/add_sub:predict", {"inputs": {"a": [[1] * 4], "b": [[1.5] * 4]}}),
    ],
    "V2 JSON": [
        (_v2("floats"), {"id": "1", "inputs": [json_tensor("x", "FP32", [2], [1, 2])], "outputs": [{"name": "y"}]}),
        (_v2("floats", "versions/1/infer"), {"inputs": [json_tensor("x", "FP32", [2], [1, 2])]}),
        (_v2("longs"), {"inputs": [json_tensor("x", "INT64", [2], [1, 2])],
                        "parameters": {"priority": 1, "timeout": 10**7}}),
        (_v2("texts"), {"inputs": [json_tensor("x", "BYTES", [2], ["a", "ü"])],
                        "outputs": [{"name": "y", "parameters": {"binary_data": True}}]}),
        (_v2("add_sub"), {"inputs": [json_tensor("a", "FP32", [1, 4], [[1] * 4]),
                                     json_tensor("b", "FP32", [1, 4], [1] * 4)],
                          "outputs": [{"name": "sum", "parameters": {"classification": 2}}]}),
    ],
    "generate": [
        (_v2("floats", "generate"), {"x": [1, 2.5], "id": "a", "temperature": 0.5}),
        (_v2("texts", "generate_stream"), {"x": "text", "parameters": {"priority": 1, "timeout": 60_000_000}}),
        (_v2("add_sub", "generate"), {"a": [1, 2, 3, 4], "b": [[1, 2, 3, 4]], "stream": True}),
        (_v2("chat", "generate_stream"), {"text_input": "hello", "max_tokens": 5, "sequence_id": 0}),
        (_v2("parts", "generate_stream"), {"x": ["a", "b"], "id": "1"}),
    ],
    "OpenAI": [
        (_CHAT, {"model": "chat", "messages": [_USER], "max_tokens": 5, "temperature": 0.1}),
        (_CHAT, {"model": "chat", "stream": True, "stream_options": {"include_usage": True},
                 "messages": [_USER, {"role": "user", "content": [{"type": "text", "text": "t"}]}]}),
        ("/v1/completions", {"model": "chat", "prompt": ["a", "b"], "n": 1, "stop": ["x"], "logit_bias": {"1": 2}}),
        ("/v1/completions", {"model": "chat", "prompt": "a", "stream": True, "seed": 1, "echo": False}),
        ("/v1/embeddings", {"model": "embed", "input": ["a", "b"], "encoding_format": "base64", "dimensions": 3}),
        (_CHAT, {"model": "chat", "messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}]}),
        (_CHAT, {"model": "chat", "tools": [], "messages": [_USER, {"role": "assistant", "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}],
             "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}}),
    ],
    "predict": [
        ("/predict", {"inputs": [1, 0, 1], "model_name": "floats"}),
        ("/predict", {"inputs": [1], "model_name": "longs", "model_version": "1", "sticky_key": "k", "output": "y"}),
        ("/predict", {"batch": [[1, 0], [0, 1]], "model_name": "flags", "model_version": "latest"}),
    ],
}  # fmt: skip
V2_BINARY = [
    ("floats", "FP32", [2], struct.pack("<2f", 1, 2)),
    ("longs", "INT64", [2], bytes(16)),
    ("flags", "BOOL", [3], b"\0\1\2"),
    ("echo", "BYTES", [2], bytes_blob(b"a", b"\xff\0")),
    ("texts", "BYTES", [1], bytes_blob("ü".encode())),
]
TRTIS_WORDS = [
    "batch_size: 1", "batch_size: 4294967295", "batch_size: 0", ":", "{", "}", "[", "]", "<", ">", "input", "output",
    'input { name: "x" dims: 2 }', 'input { name: "a" byte_size: 16 }', 'input { name: "x" batch_byte_size: 8 }',
    'input { name: "x" dims: [ 2147483647, 2147483647, 2147483647 ] }', 'input { name: "x" dims: -1 }',
    'input { name: "x" byte_size: 18446744073709551615 }', 'output { name: "y" }', "id: 18446744073709551615",
    'output { name: "sum" cls { count: 4294967295 } }', 'output { name: "y" cls { count: 1 } }', "1e999", '"',
    "\\x", "#",
]  # fmt: skip


def requests(protocol: str, count: int, seed: int) -> Iterator[Request]:
    """Malformed requests of an HTTP protocol."""
    random = Random(f"{protocol} {seed}")
    for _ in range(count):
        if protocol == "V2 binary":
            request = _binary(random)
        elif protocol == "trtis":
            request = _trtis(random)
        else:
            path, document = random.choice(SEEDS[protocol])
            if random.random() < 0.1:
                path, _ = random.choice(SEEDS[protocol])
            request = Request(path, {}, malformed_text(random, document))
        yield _around(random, request)


def heads(count: int, seed: int, prefix: str = "") -> Iterator[bytes]:
    """Bytes of HTTP/1 connections: heads, lengths and chunks that are almost right."""
    random = Random(f"heads {seed}")
    body = {"inputs": [json_tensor("x", "FP32", [2], [1, 2])]}
    path = f"{prefix}/v2/models/floats/infer"
    valid = [
        rendered("POST", path, body, {"Accept-Encoding": "gzip"}, HOST),
        rendered("POST", path, body, None, HOST, chunked=True),
        rendered("POST", path, body, {"Expect": "100-continue"}, HOST),
        rendered("GET", f"{prefix}/v2/health/ready", b"", {"Connection": "close"}, HOST) * 2,
        rendered("GET", f"{prefix}/v2/models/floats", b"", {"Upgrade": "h2c", "Connection": "Upgrade"}, HOST),
    ]
    lines = [
        b"Content-Length: 5", b"Content-Length: 99999999999", b"Content-Length: -1", b"Content-Length: 1_0",
        b"Transfer-Encoding: chunked", b"Transfer-Encoding: xchunked", b"Transfer-Encoding : chunked", b" folded",
        b"Host: evil", b"Connection: content-length", b"X: " + b"y" * 9000, b": empty", b"nothing", b"X: \0",
        b"X:\x0b1", b"Content-Encoding: gzip",
        b"Trailer: Content-Length", b"X: 1\n", b"X: 1\rY: 2", b"HOST: a", b"Host:",
    ]  # fmt: skip
    first = [
        b"GET", b"post", b"CONNECT", b"G ET", b"HTTP/0.9", b"HTTP/2.0", b"HTTP/1.2", b"*", b"//", b"/%00", b"/../..",
        b"http://evil/", b"\xff", b"PRI", b"/" + b"a" * 9000, b"/%zz", b"?" * 50,
    ]  # fmt: skip
    for _ in range(count):
        raw = random.choice(valid)
        for _ in range(random.randint(1, 3)):
            change = random.randrange(5)
            if change == 0:  # another header line, at any place among them
                parts = raw.split(b"\r\n")
                parts.insert(random.randint(1, max(1, parts.index(b"") if b"" in parts else 1)), random.choice(lines))
                raw = b"\r\n".join(parts)
            elif change == 1:  # a word of the request line
                line, *rest = raw.split(b"\r\n", 1)
                words = line.split(b" ")
                words[random.randrange(len(words))] = random.choice(first)
                raw = b"\r\n".join([b" ".join(words), *rest])
            elif change == 2:
                raw = spliced(random, raw)
            elif change == 3:
                raw = raw[: random.randint(0, len(raw))]
            else:
                raw = raw.replace(b"\r\n", random.choice([b"\n", b"\r", b"\r\r\n", b"\r\n\r\n"]), random.randint(1, 3))
        yield raw


def messages(count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Methods of the gRPC service with malformed messages."""
    random = Random(f"messages {seed}")
    for _ in range(count):
        method, fields = random.choice(MESSAGES)
        message = encoded(changed(random, fields))
        yield method, spliced(random, message) if random.random() < 0.3 else message


def connections(count: int, seed: int) -> Iterator[bytes]:
    """Bytes of HTTP/2 connections: frames in any order, with flags, numbers and lengths that are wrong."""
    random = Random(f"frames {seed}")
    for _ in range(count):
        script = list(random.choice(SCRIPTS))
        for _ in range(random.randint(1, 4)):
            at = random.randrange(len(script))
            kind, flags, number, payload = script[at]
            change = random.randrange(8)
            if change == 0:
                kind = random.choice([*range(11), 0x20, 0xFF])
            elif change == 1:
                flags = random.choice([0, 1, 4, 5, 8, 0x20, 0x2D, 0xFF])
            elif change == 2:
                number = random.choice([0, 1, 2, 3, 5, 7, 2**31 - 1, 2**31 + 1])
            elif change == 3:
                payload = spliced(random, payload)
            elif change == 4:
                payload = payload[: random.randint(0, len(payload))]
            elif change == 5:
                script.insert(random.randrange(len(script)), random.choice(random.choice(SCRIPTS)))
            elif change == 6:
                del script[random.randint(1, len(script)) :]
            else:
                payload = random.randbytes(random.choice([0, 1, 4, 5, 6, 8, 12, 100, 20_000]))
            if at < len(script):
                script[at] = (kind, flags, number, payload)
        raw = b"".join(
            frames.HEAD.pack((len(payload) + _lie(random)) % (1 << 24) << 8 | kind, flags, number) + payload
            for kind, flags, number, payload in script
        )
        start = frames.PREFACE if random.random() < 0.97 else spliced(random, frames.PREFACE)
        yield start + raw


def _lie(random: Random) -> int:
    return random.choice([-9, -1, 1, 9, 1 << 14, 1 << 20]) if random.random() < 0.05 else 0


def _value(random: Random, depth: int = 0) -> Any:
    kind = random.randrange(9 if depth < 3 else 6)
    if kind < 2:
        return random.choice(NUMBERS)
    if kind < 4:
        return random.choice(WORDS)
    if kind < 6:
        return random.choice([None, True, False, *DATATYPES])
    if kind == 6:
        return {random.choice(KEYS): _value(random, depth + 1) for _ in range(random.randint(0, 3))}
    if kind == 7:
        return [_value(random, depth + 1) for _ in range(random.choice([0, 1, 2, 5]))]
    return [random.choice(NUMBERS)] * random.choice([0, 1, 3, 1000])


def _document(random: Random, document: Any) -> Any:
    """A document with up to three of its places replaced, removed, repeated, wrapped or renamed."""
    document = json.loads(json.dumps(document))
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        parent, key = document, None
        for _ in range(random.randint(1, 6)):
            inner = parent if key is None else parent[key]
            if not isinstance(inner, (dict, list)) or not inner:
                break
            parent = inner
            key = random.choice(list(inner)) if isinstance(inner, dict) else random.randrange(len(inner))
        if key is None:
            return _value(random)
        change = random.randrange(6)
        if change == 0:
            del parent[key]
        elif change == 1 and isinstance(parent, list):
            parent.extend([parent[key]] * random.choice([1, 2, 300]))
        elif change == 2:
            for _ in range(random.choice([1, 2, 40])):
                parent[key] = [parent[key]] if random.random() < 0.7 else {random.choice(KEYS): parent[key]}
        elif change == 3 and isinstance(parent, dict):
            parent[random.choice(KEYS)] = parent.pop(key)
        else:
            parent[key] = _value(random)
    return document


def malformed_text(random: Random, document: Any) -> bytes:
    """JSON of a malformed document; sometimes in another encoding, spliced, cut, or with a key twice."""
    text = json.dumps(_document(random, document), ensure_ascii=random.random() < 0.7)
    change = random.randrange(24)
    if change == 0:
        return text.encode(random.choice(["utf-16", "utf-32", "utf-8-sig", "utf-16-le"]), "surrogatepass")
    raw = text.encode("utf-8", "surrogatepass")
    if change == 1:
        return raw[: random.randint(0, len(raw))]
    if change == 2:
        return raw.replace(b"{", b'{"%b":[],' % random.choice(KEYS).encode(), 2)
    if change == 3:
        return raw + random.choice([b",", b"}", b"\0", raw, b" " * 5000])
    return spliced(random, raw) if change < 7 else raw


def spliced(random: Random, raw: bytes) -> bytes:
    """Bytes with some cut out, put in or exchanged."""
    text = bytearray(raw)
    for _ in range(random.randint(1, 3)):
        start = random.randint(0, len(text))
        more = random.choice(SPLICES) if random.random() < 0.4 else random.randbytes(random.randint(0, 5))
        text[start : start + random.randint(0, 6)] = more
    return bytes(text)


def _around(random: Random, request: Request) -> Request:
    """The request with headers and a path that may be wrong, and a body that may be packed, or said to be."""
    path, headers, body = request
    change = random.randrange(20)
    if change == 0:
        name = random.choice(list(HEADERS))
        headers = {**headers, name: random.choice(HEADERS[name])}
    elif change == 1:
        headers = {**headers, "Content-Encoding": "gzip"}
        body = gzip.compress(body, 1, mtime=0)
        body = random.choice([body, body[:-5], body * 2, spliced(random, body), gzip.compress(body, 1, mtime=0)])
    elif change == 2:
        headers, body = {**headers, "Content-Encoding": "deflate"}, zlib.compress(body)[random.choice([0, 0, 2]) :]
    elif change == 3:
        segments = path.split("/")
        segments[random.randrange(1, len(segments))] = random.choice(
            ["", "..", "%2e%2e", "%00", "%ff", "%", "nobody", "a" * 3000, "versions", "-1", "9" * 40]
        )
        path = "/".join(segments)
    elif change == 4:
        path += random.choice(["?", "?%ff", "?a=" + "b" * 3000, "?format=binary", "/", ";x"])
    return Request(path, headers, body)


def _binary(random: Random) -> Request:
    model, datatype, shape, blob = random.choice(V2_BINARY)
    tensor = {"name": "x", "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(blob)}}
    outputs = [{"name": "y", "parameters": {"binary_data": random.random() < 0.5}}]
    document = _document(random, {"inputs": [tensor], "outputs": outputs})
    if random.random() < 0.5:
        blob = random.choice([b"", blob[:-1], blob * 2, b"\xff" * len(blob), spliced(random, blob)])
    body, headers = binary_body(document, blob)
    if random.random() < 0.2:
        headers = {name: random.choice(LENGTHS) for name in headers}
    return Request(f"/v2/models/{model}/infer", headers, body)


def _trtis(random: Random) -> Request:
    header = 'batch_size: 1 input { name: "x" dims: 2 } output { name: "y" }'
    if random.random() < 0.8:
        words = [*header.split(" "), *random.choices(TRTIS_WORDS, k=2)]
        for _ in range(random.randint(1, 3)):
            words[random.randrange(len(words))] = random.choice(TRTIS_WORDS)
        header = " ".join(words)
    model = random.choice(["floats", "texts", "longs", "add_sub", "echo"])
    blob = random.choice([b"", bytes(4), bytes(8), bytes(16), bytes(32), bytes_blob(b"a", b"b"), b"\xff" * 8])
    return Request(f"/api/infer/{model}", {"NV-InferRequest": header}, blob)


# A protobuf message as a list of fields: number, and text, bytes, an integer, a packed float or a message.
Fields = list[tuple[int, Any]]
_FLOATS: Fields = [(1, "x"), (2, "FP32"), (3, 2)]
_PARAMETER: Fields = [(1, "priority"), (2, [(2, 1)])]
_PREFIX = "/inference.GRPCInferenceService/"
MESSAGES: list[tuple[str, Fields]] = [
    (f"{_PREFIX}ModelInfer", [(1, "floats"), (3, "id"), (5, [*_FLOATS, (5, [(6, struct.pack("<2f", 1, 2))])])]),
    (f"{_PREFIX}ModelInfer", [(1, "floats"), (5, _FLOATS), (6, [(1, "y")]), (7, struct.pack("<2f", 1, 2))]),
    (f"{_PREFIX}ModelInfer", [(1, "longs"), (4, _PARAMETER), (5, [(1, "x"), (2, "INT64"), (3, 1), (5, [(3, b"\1")])])]),
    (f"{_PREFIX}ModelInfer", [(1, "echo"), (5, [(1, "x"), (2, "BYTES"), (3, 2)]), (7, bytes_blob(b"a", b"b"))]),
    (f"{_PREFIX}ModelMetadata", [(1, "floats"), (2, "1")]),
    (f"{_PREFIX}ModelReady", [(1, "floats"), (2, "1")]),
    (f"{_PREFIX}ModelConfig", [(1, "floats")]),
    (f"{_PREFIX}ModelStatistics", [(1, "floats")]),
    ("/grpc.health.v1.Health/Check", [(1, "floats")]),
]


def changed(random: Random, fields: Fields) -> Fields:
    """A message with up to three fields of it, or of those within it, changed."""
    fields = list(fields)
    for _ in range(random.randint(0, 3)):
        if not fields:
            break
        at = random.randrange(len(fields))
        number, value = fields[at]
        change = random.randrange(7)
        if change == 0:
            del fields[at]
        elif change == 1:
            fields += [fields[at]] * random.choice([1, 2, 50])
        elif change == 2:
            fields[at] = (random.choice([1, 2, 3, 4, 5, 6, 7, 8, 15, 2000, 2**29 - 1]), value)
        elif isinstance(value, list) and change < 6:
            fields[at] = (number, changed(random, value))
        else:
            fields[at] = (
                number,
                random.choice([0, 1, 2, 2**31, 2**63, 2**64 - 1, -1, "", "é", b"\xff", [], [(1, [(1, [])])]]),
            )
    return fields


def encoded(fields: Fields) -> bytes:
    encode: dict[type, Callable[[Any], bytes]] = {str: str.encode, bytes: bytes, list: encoded}
    return b"".join(
        tag(number, 0) + varint(value) if isinstance(value, int) else delimited(number, encode[type(value)](value))
        for number, value in fields
    )


def _call(method: str, *more: tuple[str, str]) -> bytes:
    fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", _PREFIX + method),
        ("content-type", "application/grpc"),
    ]
    return b"".join(literal(*field) for field in (*fields, *more))


_BLOCK = _call("ModelInfer")
_STREAM, _PACKED = _call("ModelStreamInfer"), _call("ModelStreamInfer", ("grpc-encoding", "gzip"))
_TIMED = _BLOCK + literal("grpc-timeout", "5S") + literal("content-length", "5")
_MESSAGE = encoded(MESSAGES[0][1])
_FRAMED = struct.pack(">BI", 0, len(_MESSAGE)) + _MESSAGE
_ZIPPED = gzip.compress(_MESSAGE, mtime=0)
_ZIPPED = struct.pack(">BI", 1, len(_ZIPPED)) + _ZIPPED
_SETTINGS = (frames.SETTINGS, 0, 0, b"")
_HEAD, _DATA = (frames.HEADERS, frames.END_HEADERS, 1, _BLOCK), (frames.DATA, frames.END_STREAM, 1, _FRAMED)
SCRIPTS: list[list[tuple[int, int, int, bytes]]] = [
    [_SETTINGS, _HEAD, _DATA],
    [_SETTINGS, (frames.HEADERS, 0, 1, _BLOCK[:9]), (frames.CONTINUATION, 4, 1, _BLOCK[9:]), _DATA],
    [_SETTINGS, (frames.HEADERS, 4, 1, _TIMED), (frames.DATA, 0, 1, _FRAMED[:9]), (frames.DATA, 1, 1, _FRAMED[9:])],
    [_SETTINGS, _HEAD, (frames.DATA, 0, 1, _FRAMED), (frames.HEADERS, 5, 1, literal("t", "1"))],
    [_SETTINGS, (frames.PING, 0, 0, bytes(8)), (frames.WINDOW_UPDATE, 0, 0, b"\0\0\1\0"),
     (frames.PRIORITY, 0, 3, bytes(5))],
    [(frames.SETTINGS, 0, 0, struct.pack(">HI", 4, 0)), _HEAD, _DATA, (frames.WINDOW_UPDATE, 0, 1, b"\0\0\0\1"),
     (frames.RST_STREAM, 0, 1, bytes(4)), (frames.GOAWAY, 0, 0, bytes(8))],
    [_SETTINGS, (frames.HEADERS, 4, 1, _STREAM), (frames.DATA, 0, 1, _FRAMED * 2 + _FRAMED[:7]),
     (frames.DATA, 0, 1, _FRAMED[7:]), (frames.DATA, 1, 1, b"")],
    [_SETTINGS, (frames.HEADERS, 4, 1, _PACKED), (frames.DATA, 0, 1, _ZIPPED), (frames.DATA, 1, 1, _FRAMED + _ZIPPED)],
    [_SETTINGS, (frames.HEADERS, 0x2C, 1, b"\2" + bytes(5) + _BLOCK + bytes(2)),
     (frames.DATA, 9, 1, b"\3" + _FRAMED + bytes(3))],
]  # fmt: skip
