"""Numbers and labels of Prometheus' text format, for the pages of predictor, gateway and control API."""

from collections.abc import Mapping
from typing import Final

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
LABEL_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def labels(values: Mapping[str, str]) -> str:
    """Return labels as they are written within the braces of a series."""
    return ",".join(f'{name}="{text.translate(LABEL_ESCAPES)}"' for name, text in values.items())


def number(value: float) -> str:
    """Return a sample value. An int stays an int, so that large counters lose no digits."""
    if isinstance(value, int):
        return str(value)
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
