"""ONNX classifiers that end in ZipMap, as skl2onnx exports them by default: their probabilities as a tensor. Pure.

ZipMap (domain ai.onnx.ml) turns a tensor [rows, classes] into a list of maps from label to probability, which V2 has no
datatype for. In the bytes of the file it is replaced by Identity: the tensor gets the name of the output, the labels go
to the metadata. Field numbers are those of onnx.proto, so that no onnx package is needed to serve.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from pilotlight.wire.protobuf import BYTES, VARINT, Field, delimited, fields, payload, read_varint, signed, tag, varint

Labels = dict[str, list[str]]  # output → names of its classes
_GRAPH: Final = 7  # of ModelProto
_OPSET: Final = 8
_NODE: Final = 1  # of GraphProto
_OUTPUT: Final = 12
_FLOAT: Final = 1  # TensorProto.FLOAT
_IDENTITY_OPSET: Final = 13
_LABELS: Final = {b"classlabels_int64s": 8, b"classlabels_strings": 9}  # attribute → its field of AttributeProto


def without_zipmap(model: bytes) -> tuple[bytes, Labels]:
    """Return the model with the inputs of ZipMap as its outputs, and their labels. Raises MalformedMessage."""
    labels: Labels = {}
    parts, opsets = [], []
    for number, wire_type, value in fields(memoryview(model)):
        if number == _GRAPH:
            value = memoryview(_rewrite_graph(payload(value, "graph"), labels))
        elif number == _OPSET:
            opsets.append(_first(payload(value, "opset_import"), 1))
        parts.append(_encode((number, wire_type, value)))
    if b"" not in opsets and b"ai.onnx" not in opsets:
        parts.append(delimited(_OPSET, tag(2, VARINT) + varint(_IDENTITY_OPSET)))
    return b"".join(parts), labels


def _rewrite_graph(graph: memoryview, labels: Labels) -> bytes:
    parts = []
    for field in fields(graph):
        if field[0] == _NODE and _first(node := payload(field[2], "node"), 4) == b"ZipMap":
            source, output = _first(node, 1), _first(node, 2)
            labels[str(output, "utf-8")] = _class_labels(node)
            identity = delimited(1, source) + delimited(2, output) + delimited(4, b"Identity")
            field = (_NODE, BYTES, memoryview(identity))
        parts.append(field)
    return b"".join(_encode(_with_tensor_type(field, labels)) for field in parts)


def _with_tensor_type(field: Field, labels: Mapping[str, Sequence[str]]) -> Field:
    """Declare an output of ZipMap as float [-1, classes]; other fields as they are."""
    number, wire_type, value = field
    name = _first(payload(value, "output"), 1) if number == _OUTPUT else b""
    if (classes := labels.get(str(name, "utf-8"))) is None:
        return field
    shape = delimited(1, b"") + delimited(1, tag(1, VARINT) + varint(len(classes)))
    tensor = tag(1, VARINT) + varint(_FLOAT) + delimited(2, shape)
    return number, wire_type, memoryview(delimited(1, name) + delimited(2, delimited(1, tensor)))


def _class_labels(node: memoryview) -> list[str]:
    labels: list[str] = []
    for number, _, value in fields(node):
        if number != 5:
            continue
        attribute = payload(value, "attribute")
        wanted = _LABELS.get(_first(attribute, 1))
        for inner, _, label in fields(attribute):
            if inner == wanted:
                labels += [str(label, "utf-8")] if wanted == 9 and not isinstance(label, int) else _integers(label)
    return labels


def _integers(value: int | memoryview) -> list[str]:
    """Return one number, or packed ones: both encodings are in use."""
    if isinstance(value, int):
        return [str(signed(value))]
    numbers, at = [], 0
    while at < len(value):
        number, at = read_varint(value, at)
        numbers.append(str(signed(number)))
    return numbers


def _first(message: memoryview, number: int) -> bytes:
    """Return the first value of a field of bytes; empty if there is none."""
    return next((bytes(payload(value, "field")) for each, _, value in fields(message) if each == number), b"")


def _encode(field: Field) -> bytes:
    number, wire_type, value = field
    if isinstance(value, int):
        return tag(number, wire_type) + varint(value)
    return delimited(number, value) if wire_type == BYTES else tag(number, wire_type) + value
