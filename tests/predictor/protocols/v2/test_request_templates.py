"""A request in a known form means what it would mean to a server that never saw the form."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.predictor.fuzzing import changed, fuzz

from pilotlight_predictor.core.request_parameters import no_shared_memory
from pilotlight_predictor.errors import BadRequest
from pilotlight_predictor.protocols.v2.request_codec import decode_request
from pilotlight_predictor.protocols.v2.request_templates import MAX_TEMPLATES, MAX_UNUSED, RETRY_AFTER, TemplateCache

PLAIN = b'{"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": %b}]}'
AROUND = [
    PLAIN,
    b'{"inputs":[{"data":%b,"name":"x","shape":[2],"datatype":"INT8"}],"outputs":[{"name":"y"}]}',
    b'{"more": [1], "inputs": [{"name": "data\\": [", "shape": [2], "datatype": "UINT64", "data": %b}]} ',
    b'{"inputs": [{"data": [7, 8], "data": %b, "name": "x", "shape": [2], "datatype": "FP16"}], "x": NaN}',
    b'{"inputs": [{"name": "x", "shape": [2], "datatype": "BOOL", "data":\n%b\n}]}',
    b'{"x": [1, "NaN"], "inputs": [{"name": "x", "shape": [2], "datatype": "FP32", "data": %b}]}',
    b'{"id": "q7", "inputs": [{"name": "x", "shape": [2], "datatype": "INT32", "data": %b}]}',
    b'{"inputs": [{"name": "x", "shape": [2], "datatype": "FP64", "data": %b}], "id":"q7"}',
]
ARRAYS = [
    b"[1, 2]", b"[ 1.5 , -2e3 ]", b"[3,4]", b"[1, 2, 3]", b"[]", b"[[1, 2]]", b"[1], [2]", b"[1, 2] ", b'["NaN", 1]',
    b"[NaN, 1]", b"[null, 1]", b"[1e39, 1]", b"[300, 1]", b"[true, false]", b'[1, "]"]', b'[1, 2], "data": [3, 4]',
    b'[1, 2], "parameters": {"a": [3, 4]}, "x": [5, 6]', b'[1, 2]}, {"name": "z", "data": [3, 4]', b"[1,, 2]", b"[1, 2",
    b'"[1, 2]"', b"[18446744073709551615, 0]", b"[1\xff, 2]", b"[7, 8]",
]  # fmt: skip


def meaning(body: bytes, forms: TemplateCache | None) -> Any:
    try:
        known = forms.read("m", 1, body) if forms is not None else None
        request = known or decode_request("m", 1, body, None, no_shared_memory, forms)
    except BadRequest as error:
        return str(error)
    inputs = {n: (t.datatype, t.array.dtype, t.array.shape, t.array.tobytes()) for n, t in request.inputs.items()}
    return inputs, request.id, request.outputs, request.parameters, request.version, request.model


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("first", [b"[1, 2]", b"[true, false]", b"[7, 8]"])
def test_whatever_the_array_is(around: bytes, first: bytes) -> None:
    forms = TemplateCache()
    meaning(around % first, forms)
    for array in ARRAYS:
        assert meaning(around % array, forms) == meaning(around % array, None), array


def test_what_was_rewritten_before_it_was_read_is_not_taken_for_what_stands_elsewhere() -> None:
    """NaN is put into quotes, and then the array's text is that of the other one."""
    text = b'{"x": %b, "inputs": [{"name": "a", "shape": [2], "datatype": "FP32", "data": [1,NaN]}]}'
    forms = TemplateCache()
    for other in (b'[1,"NaN"]', b"[5,6]"):
        assert meaning(text % other, forms) == meaning(text % other, None)


def test_an_array_of_as_many_dimensions_as_there_can_be_has_no_form() -> None:
    body = b'{"inputs": [{"name": "x", "shape": %b, "datatype": "FP32", "data": [7]}]}'
    for dims, known in ((63, True), (64, False)):
        forms, text = TemplateCache(), body % json.dumps([1] * dims).encode()
        meaning(text, forms)
        assert read(forms, text) is known
        assert meaning(text, forms) == meaning(text, None)


WITH_ID = b'{"id": %b, "inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [7, 8]}], "x": "x"}'
IDS = [
    b'"1"', b'"a longer one, with spaces: {}[]"', b'""', b'"x"', b'"\\u0041"', b'"a\\"b"', b'"\xc3\xbc"', b'"\xff"',
    b'"a\nb"', b'"\x7f"', b"7", b"null", b'"1', b"1", b'"1" ', b'"1", "id": "2"', b'"1", "outputs": [{"name": "y"}]',
    b'["1"]', b'"inputs"', b'"1", "data": [3, 4], "y": "z"', b'"A", "more": {"id": "\\u0041"}',
    b'"\\u0041", "more": {"id": "A"}', b'"1", "x": [7, 8]',
]  # fmt: skip


@pytest.mark.parametrize("first", IDS, ids=[f"{number}" for number in range(len(IDS))])
def test_whatever_the_id_is(first: bytes) -> None:
    forms = TemplateCache()
    meaning(WITH_ID % first, forms)
    for identity in IDS:
        assert meaning(WITH_ID % identity, forms) == meaning(WITH_ID % identity, None), identity
        body = (WITH_ID % identity).replace(b"[7, 8]", b"[3.5, true]")
        assert meaning(body, forms) == meaning(body, None), identity


def test_requests_with_ids_of_their_own_have_one_form() -> None:
    forms = TemplateCache()
    meaning(WITH_ID % b'"0"', forms)
    for number in range(3):
        known = forms.read("m", 1, WITH_ID % b'"%d"' % number)
        assert known is not None
        assert known.id == str(number)


EVERYTHING = [*(around % array for around in AROUND for array in ARRAYS), *(WITH_ID % identity for identity in IDS)]


@fuzz(600)
@given(bodies=st.lists(changed(EVERYTHING), min_size=2, max_size=8))
def test_whatever_came_before(bodies: list[bytes]) -> None:
    forms = TemplateCache()
    for body in [*bodies, *bodies]:
        assert meaning(body, forms) == meaning(body, None)


def read(forms: TemplateCache, body: bytes) -> bool:
    return forms.read("m", 1, body) is not None


def test_a_form_is_known_from_the_second_request_on() -> None:
    forms = TemplateCache()
    assert not read(forms, PLAIN % b"[1, 2]")
    meaning(PLAIN % b"[1.5, 2]", forms)
    assert read(forms, PLAIN % b"[-3.5,4]")
    assert not read(forms, PLAIN % b"[-3.5,4,5]")


@pytest.mark.parametrize(
    "body",
    [
        {"inputs": [{"name": "x", "shape": [2], "datatype": "FP32", "data": [1, 2]}], "id": "1"},
        {"inputs": [{"name": "x", "shape": [2], "datatype": "FP32", "data": [1, 2]}], "parameters": {"priority": 1}},
        {"inputs": [{"name": "x", "shape": [2], "datatype": "BYTES", "data": ["1", "2"]}]},
        {"inputs": [{"name": "x", "shape": [2], "datatype": "FP32", "data": [1, 2]}], "outputs": [], "also": [1, 2]},
        {"inputs": [{"name": n, "shape": [1], "datatype": "FP32", "data": [ord(n)]} for n in "xy"]},
    ],
    ids=["id behind the array", "parameters", "strings", "the same array twice", "two inputs"],
)
def test_what_is_more_than_one_array_has_no_form(body: dict[str, Any]) -> None:
    forms, text = TemplateCache(), json.dumps(body).encode()
    meaning(text, forms)
    assert not read(forms, text)


def test_clients_that_write_something_else_each_time_cost_no_form_for_ever() -> None:
    forms = TemplateCache()
    for number in range(MAX_UNUSED + 2):
        meaning(b'{"n": %d, ' % number + PLAIN[1:] % b"[7, 8]", forms)
    assert not read(forms, b'{"n": %d, ' % (MAX_UNUSED + 1) + PLAIN[1:] % b"[1, 2]")
    kept = [read(forms, b'{"n": %d, ' % number + PLAIN[1:] % b"[1, 2]") for number in range(MAX_UNUSED)]
    assert sum(kept) == MAX_TEMPLATES


def test_who_comes_after_such_a_client_is_known_in_time() -> None:
    forms = TemplateCache()
    for number in range(2 * MAX_UNUSED):
        meaning(b'{"n": %d, ' % number + PLAIN[1:] % b"[7, 8]", forms)
    for _ in range(RETRY_AFTER):
        meaning(PLAIN % b"[7, 8]", forms)
    assert read(forms, PLAIN % b"[1, 2]")
