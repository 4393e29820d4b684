"""The requests that `demo` sends: what is asked, how it goes over the wire, and what the answer says to a person."""

import array
import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pilotlight.errors import PlatformError
from platformctl.child import Reply

BINARY_LENGTH = "inference-header-content-length"
FLOWER = [5.1, 3.5, 1.4, 0.2]
MODELS = ("iris", "file_type", "vad")


@dataclass(frozen=True, slots=True)
class Showcase:
    """One request. `read` turns the reply into the sentence that is printed."""

    title: str
    model: str
    body: bytes
    read: Callable[[Reply], str]
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return f"/v2/models/{self.model}/infer"


def showcases(examples: Path) -> list[Showcase]:
    return [iris(), file_type(examples / "build.py"), vad()]


def iris() -> Showcase:
    """JSON in and out, with the classification extension for a label in place of numbers."""
    document = {
        "inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": FLOWER}],
        "outputs": [{"name": "y", "parameters": {"classification": 1}}],
    }

    def read(reply: Reply) -> str:
        score, _, label = str(_output(reply, "y")["data"][0]).split(":", 2)  # type: ignore[index]
        return f"{label} ({float(score):.3f})"

    return Showcase(f"which iris has the measures {FLOWER}", "iris", json.dumps(document).encode(), read)


def file_type(file: Path) -> Showcase:
    """A whole file as one string tensor, through an ensemble of Python and ONNX steps."""
    content = file.read_text("utf-8")
    document = {"inputs": [{"name": "content", "shape": [1, 1], "datatype": "BYTES", "data": [content]}]}

    def read(reply: Reply) -> str:
        label, score = (_output(reply, name)["data"][0] for name in ("label", "score"))  # type: ignore[index]
        return f"{label} ({float(score):.3f})"

    return Showcase(f"what kind of file is examples/{file.name}", "file_type", json.dumps(document).encode(), read)


def vad() -> Showcase:
    """Raw tensors behind a JSON header, both ways: no number is ever written as text."""
    tone = array.array("f", (0.1 * math.sin(2 * math.pi * 440 * n / 16000) for n in range(576)))
    tensors = [
        ("input", "FP32", [1, 576], _little(tone)),
        ("state", "FP32", [2, 1, 128], bytes(4 * 256)),
        ("sr", "INT64", [1], _little(array.array("q", [16000]))),
    ]
    inputs = [
        {"name": name, "shape": shape, "datatype": datatype, "parameters": {"binary_data_size": len(raw)}}
        for name, datatype, shape, raw in tensors
    ]
    outputs = [{"name": "output", "parameters": {"binary_data": True}}]
    header = json.dumps({"inputs": inputs, "outputs": outputs}).encode()
    body = header + b"".join(raw for *_, raw in tensors)

    def read(reply: Reply) -> str:
        length = int(reply.headers[BINARY_LENGTH])
        (speech,) = _floats(reply.body[length : length + 4])
        return f"speech with probability {speech:.3f}"

    return Showcase("is a 440 Hz tone speech (binary tensors)", "vad", body, read, {BINARY_LENGTH: str(len(header))})


def _output(reply: Reply, name: str) -> dict[str, object]:
    for output in json.loads(reply.body)["outputs"]:
        if output["name"] == name:
            found: dict[str, object] = output
            return found
    raise PlatformError(f"the answer has no output {name}: {reply.body[:200]!r}")


def _little(raw: "array.array[float] | array.array[int]") -> bytes:
    """The wire is little-endian, whatever this machine is."""
    copy = raw[:]
    if sys.byteorder == "big":
        copy.byteswap()
    return copy.tobytes()


def _floats(raw: bytes) -> "array.array[float]":
    values = array.array("f", raw)
    if sys.byteorder == "big":
        values.byteswap()
    return values
