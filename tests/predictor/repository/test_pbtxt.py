"""The reader of protobuf's text format: its grammar, the places in its errors, and agreement with protobuf itself."""

import pytest
from google.protobuf import descriptor_pb2, text_format
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.repository.config_reader import config_from_pbtxt
from pilotlight_predictor.repository.pbtxt import MAX_DEPTH, PbtxtMessage, Scalar, parse_pbtxt


def plain(message: PbtxtMessage) -> dict[str, list[object]]:
    """The tree without places, repeated fields joined."""
    result: dict[str, list[object]] = {}
    for field in message.fields:
        values = [v.value if isinstance(v, Scalar) else plain(v) for v in field.values]
        result.setdefault(field.name, []).extend(values)
    return result


def read(text: str) -> dict[str, list[object]]:
    return plain(parse_pbtxt(text, "f"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 1", {"a": [1]}),
        ("a: -1", {"a": [-1]}),
        ("a: - 1", {"a": [-1]}),
        ("a: 0x1F", {"a": [31]}),
        ("a: 017", {"a": [15]}),
        ("a: 1.5", {"a": [1.5]}),
        ("a: 1.5f", {"a": [1.5]}),
        ("a: 2f", {"a": [2.0]}),
        ("a: .5", {"a": [0.5]}),
        ("a: 1e3", {"a": [1000.0]}),
        ("a: -inf", {"a": ["-inf"]}),
        ("a: TYPE_FP32", {"a": ["TYPE_FP32"]}),
        ("a: true", {"a": ["true"]}),
        ('a: "x"', {"a": [b"x"]}),
        ("a: 'x'", {"a": [b"x"]}),
        ('a: "it\'s"', {"a": [b"it's"]}),
        ('a: "x" \'y\'\n# between\n"z"', {"a": [b"xyz"]}),
        (r'a: "\n\t\"\\\101\x41\u00e9\U0001F600"', {"a": ['\n\t"\\AA\u00e9\U0001f600'.encode()]}),
        (r'a: "\377"', {"a": [b"\xff"]}),
        ("a: [1, 2]", {"a": [1, 2]}),
        ("a: []", {"a": [[]][0]}),
        ("a: 1 a: 2", {"a": [1, 2]}),
        ("a: 1, b: 2; c: 3", {"a": [1], "b": [2], "c": [3]}),
        ("a { b: 1 }", {"a": [{"b": [1]}]}),
        ("a: { b: 1 }", {"a": [{"b": [1]}]}),
        ("a < b: 1 >", {"a": [{"b": [1]}]}),
        ("a [ { b: 1 }, { b: 2 } ]", {"a": [{"b": [1]}, {"b": [2]}]}),
        ("a: [ { } ]", {"a": [{}]}),
        ("# only a comment", {}),
        ("", {}),
        ("a: 1 # to the end", {"a": [1]}),
    ],
)
def test_reads_each_form_of_the_grammar(text: str, value: dict[str, list[object]]) -> None:
    assert read(text) == value


@pytest.mark.parametrize(
    ("text", "start", "says"),
    [
        ("a", "f:1:2:", "':' after a"),
        ("a: 1\n  b 2", "f:2:5:", "':' after b"),
        ("a: [1 2]", "f:1:7:", "',' or ']'"),
        ("a: [1,]", "f:1:7:", "a value"),
        ("a [1]", "f:1:4:", "only messages"),
        ("a: {\n b: 1\n", "f:3:1:", "the end of the text"),
        ("a: { b: 1 >", "f:1:11:", "'}'"),
        ("}", "f:1:1:", "a field name"),
        ('a: "x', "f:1:4:", "not closed"),
        ('a: "x\ny"', "f:1:4:", "not closed"),
        (r'a: "\q"', "f:1:4:", "unknown escape"),
        ("a: 089", "f:1:4:", "octal"),
        ("a: 1x", "f:1:5:", "followed by a space"),
        ("a: 1.2.3", "f:1:7:", "followed by a space"),
        ("a: -TYPE", "f:1:4:", "a number after '-'"),
        ("a: " + "9" * 50, "f:1:4:", "64 bits"),
        ("[ext]: 1", "f:1:1:", "a field name"),
        ("a: $", "f:1:4:", "unexpected character"),
    ],
)
def test_names_the_place_of_a_mistake(text: str, start: str, says: str) -> None:
    with pytest.raises(LoadFailed) as failure:
        parse_pbtxt(text, "f")
    assert str(failure.value).startswith(start)
    assert says in str(failure.value)


def test_nesting_has_a_limit() -> None:
    parse_pbtxt("a {" * MAX_DEPTH + "}" * MAX_DEPTH, "f")
    with pytest.raises(LoadFailed, match="deeper than 100"):
        parse_pbtxt("a {" * 250_000, "f")


@settings(deadline=None)
@given(
    st.builds(
        descriptor_pb2.UninterpretedOption,
        identifier_value=st.text(),
        positive_int_value=st.integers(0, 2**64 - 1),
        negative_int_value=st.integers(-(2**63), -1),
        double_value=st.floats(allow_nan=False, allow_infinity=False),
        string_value=st.binary(),
    )
)
def test_reads_back_whatever_protobuf_prints(message: descriptor_pb2.UninterpretedOption) -> None:
    for as_utf8 in (True, False):
        tree = read(text_format.MessageToString(message, as_utf8=as_utf8))
        assert tree["identifier_value"] == [message.identifier_value.encode()]
        assert tree["positive_int_value"] == [message.positive_int_value]
        assert tree["negative_int_value"] == [message.negative_int_value]
        assert tree["double_value"] == [message.double_value]
        assert tree["string_value"] == [message.string_value]


_PIECES = st.sampled_from(
    ["name", "input", "dims", "max_batch_size", "dynamic_batching", "version_policy", ":", "{", "}", "[", "]", "<", ">",
     ",", ";", "-", "1", "0x", "1.5", '"x"', "'", '"', "\\", "TYPE_FP32", "true", "inf", "#", "\n", " ", "key", "value",
     "parameters", "latest", "\ud800", "é"]
)  # fmt: skip


@settings(deadline=None)
@given(st.one_of(st.text(), st.lists(_PIECES).map(" ".join), st.lists(_PIECES).map("".join)))
@example('name: "\ud800"')
@example("parameters { key: 1 }")
@example("input: 1")
def test_any_text_gives_a_configuration_or_a_located_failure(text: str) -> None:
    try:
        config_from_pbtxt(text, "config.pbtxt")
    except LoadFailed as failure:
        assert str(failure).startswith("config.pbtxt:")  # noqa: PT017
