"""Header compression, judged by the examples of RFC 7541, appendix C."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilotlight.wire.http2.hpack import (
    DEFAULT_TABLE,
    ENTRY_COST,
    Decoder,
    HeaderField,
    decode,
    indexed,
    literal,
    read_integer,
)
from pilotlight.wire.http2.hpack import write_integer as written

GET: list[HeaderField] = [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com")]
HTTPS: list[HeaderField] = [
    (":method", "GET"), (":scheme", "https"), (":path", "/index.html"), (":authority", "www.example.com"),
    ("custom-key", "custom-value"),
]  # fmt: skip
REQUESTS = (GET, [*GET, ("cache-control", "no-cache")], HTTPS)
PLAIN = (
    "828684410f7777772e6578616d706c652e636f6d",
    "828684be58086e6f2d6361636865",
    "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
)
PACKED = (
    "828684418cf1e3c2e5f23a6ba0ab90f4ff",
    "828684be5886a8eb10649cbf",
    "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
)
TABLE_OF_256 = "3fe101"
DATED, LOCATED = ("date", "Mon, 21 Oct 2013 20:13:21 GMT"), ("location", "https://www.example.com")
COOKIE = "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"
RESPONSES = (
    (
        TABLE_OF_256 + "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f0b97"
        "c8e9ae82ae43d3",
        [(":status", "302"), ("cache-control", "private"), DATED, LOCATED],
    ),
    ("4883640effc1c0bf", [(":status", "307"), ("cache-control", "private"), DATED, LOCATED]),
    (
        "88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b335dfdfcd5b3960d5af27087f"
        "3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007",
        [
            (":status", "200"), ("cache-control", "private"), ("date", "Mon, 21 Oct 2013 20:13:22 GMT"), LOCATED,
            ("content-encoding", "gzip"), ("set-cookie", COOKIE),
        ],
    ),
)  # fmt: skip


def fields(decoder: Decoder, block: str) -> list[HeaderField]:
    return decoder.fields(bytes.fromhex(block))[0]


@pytest.mark.parametrize(("value", "bits", "expected"), [(10, 5, "0a"), (1337, 5, "1f9a0a"), (42, 8, "2a")])
def test_integers_are_those_of_the_rfc(value: int, bits: int, expected: str) -> None:
    assert written(value, bits).hex() == expected
    assert read_integer(bytes.fromhex(expected), 0, bits) == (value, len(expected) // 2)


@pytest.mark.parametrize(
    ("block", "field"),
    [
        ("400a637573746f6d2d6b65790d637573746f6d2d686561646572", ("custom-key", "custom-header")),
        ("040c2f73616d706c652f70617468", (":path", "/sample/path")),
        ("100870617373776f726406736563726574", ("password", "secret")),
        ("82", (":method", "GET")),
    ],
)
def test_fields_are_those_of_the_rfc(block: str, field: HeaderField) -> None:
    assert fields(Decoder(1000), block) == [field]


@pytest.mark.parametrize("blocks", [PLAIN, PACKED], ids=["plain", "packed"])
def test_requests_of_one_connection_are_those_of_the_rfc(blocks: tuple[str, ...]) -> None:
    decoder = Decoder(1000)
    assert tuple(fields(decoder, block) for block in blocks) == REQUESTS


def test_a_small_table_forgets_as_in_the_rfc() -> None:
    decoder = Decoder(1000)
    for block, expected in RESPONSES:
        assert fields(decoder, block) == expected


def test_only_a_block_that_changes_the_table_changes_its_version() -> None:
    decoder = Decoder(1000)
    fields(decoder, PLAIN[0])
    version = decoder.version
    fields(decoder, "828684be")
    assert decoder.version == version
    fields(decoder, PLAIN[1])
    assert decoder.version > version


def test_fields_beyond_the_limit_are_left_out_and_the_table_stays_right() -> None:
    decoder = Decoder(most=200)
    block = literal("a", "x" * 200, index=True) + literal("b", "y", index=True)
    assert decoder.fields(block) == ([], False)
    assert decoder.fields(indexed(62)) == ([("b", "y")], True)


def test_an_entry_larger_than_the_table_empties_it() -> None:
    decoder = Decoder(10_000)
    decoder.fields(literal("a", "b", index=True))
    decoder.fields(literal("a", "b" * (DEFAULT_TABLE - ENTRY_COST), index=True))
    with pytest.raises(ValueError, match="no entry 62"):
        decoder.fields(indexed(62))


@pytest.mark.parametrize(
    "block",
    ["80", "be", "40", "0001", "000161", "00016105", "7fffffffffff7f", "3fe21f", "8220", "00810001ff", "0081ff00",
     "0084fffffffc00", "0085fffffffffc00"],
)  # fmt: skip
def test_what_is_no_block_is_refused(block: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        fields(Decoder(1000), block)


@given(st.binary(max_size=80))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_a_block_or_refused(block: bytes) -> None:
    try:
        Decoder(1000).fields(block)
    except ValueError:
        return


@given(st.text(st.characters(max_codepoint=255), max_size=40), st.booleans())
@settings(max_examples=100, deadline=None)
def test_what_is_written_is_read(value: str, keep: bool) -> None:
    decoder = Decoder(10_000)
    assert fields(decoder, literal("x-name", value, index=keep).hex()) == [("x-name", value)]
    if keep:
        assert fields(decoder, indexed(62).hex()) == [("x-name", value)]


@pytest.mark.parametrize("data", ["ff", "ffff", "fffffffc", "ffffffff", "00"], ids=str)
def test_padding_is_the_beginning_of_eos_and_shorter_than_a_byte(data: str) -> None:
    with pytest.raises(ValueError, match="Huffman"):
        decode(bytes.fromhex(data))
