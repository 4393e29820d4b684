"""JSON values → arrays, without a server: what a hostile body costs, and what decoding leaves as it was."""

import subprocess
import sys
from time import process_time

import msgspec
import numpy as np
import pytest

from pilotlight_predictor.errors import BadRequest
from pilotlight_predictor.protocols.json_values import decode_values
from pilotlight_predictor.protocols.v2.request_codec import decode_request


@pytest.mark.parametrize(
    "body",
    [b'NaN"' + rb"\"" * 200_000, b'NaN"' + b"a" * 400_000, rb"NaN\"" * 100_000, b'[NaN, "\n' + rb"\\\"" * 100_000],
    ids=["escaped quotes", "no end", "quotes everywhere", "backslashes"],
)
def test_a_body_with_strings_that_never_end_is_refused_in_linear_time(body: bytes) -> None:
    """Read again from each of its quotes, a body of 400 kB would take half an hour."""
    started = process_time()
    with pytest.raises(BadRequest):
        decode_request("m", -1, body, None)
    assert process_time() - started < 5


@pytest.mark.parametrize(
    ("datatype", "largest", "beyond"),
    [
        ("FP16", "65519.99", "65520"),
        ("FP32", "3.4028235677973362e38", "3.4028235677973366e38"),
        ("FP64", "1.7976931348623157e308", None),
    ],
)
@pytest.mark.parametrize("form", ["[{}, 1]", "[[{}], [1]]", '[{}, "Infinity"]'], ids=["flat", "nested", "infinite"])
def test_a_number_fits_as_long_as_it_rounds_to_a_finite_one(
    datatype: str, largest: str, beyond: str | None, form: str
) -> None:
    for sign in ("", "-"):
        tensor = decode_values("x", datatype, (2,), msgspec.Raw(form.format(sign + largest).encode()))
        assert abs(tensor.array[0]) == np.finfo(tensor.array.dtype).max
        if beyond is not None:
            with pytest.raises(BadRequest, match=f"does not fit {datatype}"):
                decode_values("x", datatype, (2,), msgspec.Raw(form.format(sign + beyond).encode()))


@pytest.mark.parametrize(
    ("datatype", "text", "shape"),
    [("FP32", "[[[1, 2]], [[3, 4]]]", (2, 1, 2)), ("INT8", "[[], []]", (2, 0)), ("BF16", "[1.5]", ()),
     ("BYTES", '[["a"], ["b"]]', (2, 1)), ("BOOL", "[[true]]", (1, 1)), ("FP32", '[["NaN"], [1]]', (2, 1))],
)  # fmt: skip
def test_nested_values_take_their_shape_and_may_be_written_to(datatype: str, text: str, shape: tuple[int, ...]) -> None:
    array = decode_values("x", datatype, shape, msgspec.Raw(text.encode())).array
    assert array.shape == shape
    assert array.flags.writeable


def test_decoding_leaves_the_warnings_of_the_process_alone() -> None:
    code = (
        "import warnings, numpy; before = list(warnings.filters)\n"
        "import pilotlight_predictor.protocols.json_values\n"
        "assert list(warnings.filters) == before, warnings.filters"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
