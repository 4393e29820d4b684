"""The scan for `model` in a body that arrives in pieces."""

import json
import random
import time
from typing import Any

import pytest

from pilotlight.gateway.proxy.model_field import MAX_STEPS, FormModelField, JsonModelField, ModelField, model_field

TRICKY = ["model", 'a "quoted" one', "back\\slash\\", "{[,:]}", 'é\n\\"', 1, 2.5, None, True, "x" * 30, [], {}]


def scanned(field: ModelField, body: bytes, cuts: list[int]) -> ModelField:
    for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True):
        if not field.done:
            field.feed(body[start:end])
    return field


def value(source: random.Random, depth: int = 0) -> Any:
    kind = source.random()
    if depth > 3 or kind < 0.4:
        return source.choice(TRICKY)
    if kind < 0.7:
        return [value(source, depth + 1) for _ in range(source.randint(0, 4))]
    keys = source.sample(["a", "model", 'b"x', "c\\", "d"], source.randint(0, 4))
    return {key: value(source, depth + 1) for key in keys}


@pytest.mark.parametrize("seed", range(4))
def test_the_model_is_that_of_the_top_level_object_however_the_body_is_cut(seed: int) -> None:
    source = random.Random(seed)
    for _ in range(500):
        items = [
            (f"{key}{number}", value(source)) for number, key in enumerate(source.choices(["x", 'm"', "y\\"], k=3))
        ]
        name = source.choice(["llama", "llama@canary", 'odd"\\ name', "é"]) if source.random() < 0.8 else None
        if name is not None:
            items.insert(source.randint(0, 3), ("model", name))
        body = json.dumps(dict(items), ensure_ascii=source.random() < 0.5, indent=source.choice([None, 1])).encode()
        cuts = sorted(source.sample(range(len(body)), source.randint(0, min(8, len(body)))))
        field = scanned(JsonModelField(), body, cuts)
        assert (field.name, field.done) == (name, True)
        if name is not None:
            renamed = body[: field.start] + field.replacement("served") + body[field.end :]
            assert json.loads(renamed) == dict(items) | {"model": "served"}


def test_the_scan_ends_with_the_model_and_needs_nothing_after_it() -> None:
    field = JsonModelField()
    field.feed(b'{"mod\\u0065l" : "llama", "messages": [')
    assert (field.done, field.name) == (True, "llama")


@pytest.mark.parametrize(
    "body", [b"[1]", b'"model"', b'{"model":1,"a":2}', b'{"model":{"model":"x"}}', b'{"a":[{"model":"x"}]}', b"{}"]
)
def test_a_body_without_the_name_of_a_model_has_none(body: bytes) -> None:
    field = scanned(JsonModelField(), body, [])
    assert (field.done, field.name) == (True, None)


@pytest.mark.parametrize(
    ("before", "repeated"), [(b'{"a":', b"["), (b'{"a":[', b"[],"), (b"{", b'"a":1,'), (b'{"a":', b'{"b":')]
)
def test_a_body_of_brackets_ends_the_scan_before_it_takes_a_second(before: bytes, repeated: bytes) -> None:
    field = JsonModelField()
    field.feed(before + repeated * MAX_STEPS)
    assert (field.done, field.too_late, field.name) == (True, True, None)


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_the_model_of_a_form_is_found_after_a_file_too(size: int) -> None:
    file = b'--b\r\nContent-Disposition: form-data; name="file"; filename="model"\r\n\r\n' + bytes(3000) + b"\r\n"
    file += b'Content-Disposition: form-data; name="model"\r\n\r\nfrom the file\r\n'
    body = file + b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nwhisper\r\n--b--\r\n'
    field = scanned(FormModelField(b"b"), body, list(range(size, len(body), size)))
    assert (field.done, field.name) == (True, "whisper")
    assert body[: field.start] + field.replacement("w") + body[field.end :] == body.replace(b"whisper", b"w")


@pytest.mark.parametrize(
    "body",
    [b"Content-Disposition: " * 100_000, b'--b\r\nContent-Disposition: x' + b"; name=" * 100_000,
     b'--b\r\nContent-Disposition: form-data; name="model"\r\n' + b"a: b\r\n" * 200_000, b"\r\n--b" * 200_000,
     b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\n' + b"x" * 1_000_000 + b"\r\n--b--\r\n"],
)  # fmt: skip
def test_a_form_without_a_model_is_scanned_in_linear_time(body: bytes) -> None:
    field = FormModelField(b"b")
    began = time.process_time()
    for start in range(0, len(body), 1 << 16):
        if not field.done:
            field.feed(body[start : start + (1 << 16)])
    assert field.name is None
    assert time.process_time() - began < 2  # 0.2 s where nothing else runs; quadratic it took minutes


def test_a_form_without_a_boundary_has_no_model() -> None:
    assert model_field({"content-type": "multipart/form-data"}).done
    assert not model_field({"content-type": 'Multipart/form-data; Boundary="b c"'}).done
