"""How Prometheus' text format writes one number and one label. For the pages of predictor, gateway and control API.

Each of them keeps its counts in its own way and has its own page; what must agree between them is here.
"""

from collections.abc import Mapping
from typing import Final

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
LABEL_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def labels(of: Mapping[str, str]) -> str:
    """As they stand within the braces of a series."""
    return ",".join(f'{name}="{text.translate(LABEL_ESCAPES)}"' for name, text in of.items())


def number(value: float) -> str:
    """An int stays an int, so that large counters lose no digits; infinity and what is no number have names there."""
    if isinstance(value, int):
        return str(value)
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
