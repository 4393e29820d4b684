"""Variants of a document: every combination of the values of `--vary PATH=a,b` and `--vary PATH=0..3`."""

import re
from collections.abc import Sequence
from itertools import product
from typing import Final, NamedTuple

from pilotlight.errors import UsageError
from pilotlight.spec.field_types import parse_path

MAX_VARIANTS: Final = 500
_RANGE: Final = re.compile(r"(\d+)\.\.(\d+)(?::(\d+))?")


class Axis(NamedTuple):
    """A path of the document, or an option of the simulation, with its values as text."""

    path: str
    values: tuple[str, ...]


Variant = tuple[tuple[str, str], ...]  # path and value of each axis


def parse_axis(text: str) -> Axis:
    """Return the axis of `PATH=a,b`, `PATH=0..3` or `PATH=10..100:10`. Raise UsageError."""
    path, _, written = text.partition("=")
    values: list[str] = []
    for part in filter(None, (part.strip() for part in written.split(","))):
        match = _RANGE.fullmatch(part)
        values += map(str, range(int(match[1]), int(match[2]) + 1, int(match[3] or 1) or 1)) if match else [part]
    if not path.strip() or not values:
        raise UsageError(f"--vary {text!r}: must be PATH=VALUES, such as spec.predictor.minReplicas=0..3")
    return Axis(path.strip(), tuple(dict.fromkeys(values)))


def variants(axes: Sequence[Axis]) -> list[Variant]:
    """Return all combinations; one without values if there is no axis."""
    count = 1
    for axis in axes:
        count *= len(axis.values)
    if count > MAX_VARIANTS:
        raise UsageError(f"--vary gives {count} variants, must be at most {MAX_VARIANTS}; leave some values out")
    return list(product(*([(axis.path, value) for value in axis.values] for axis in axes)))


def label(variant: Variant) -> str:
    """`minReplicas=0 scaleTarget=8 window=30s`: the last part of each path."""
    names = (str((parse_path(path) or [path])[-1]).rpartition("/")[2] for path, _ in variant)
    return " ".join(f"{name}={value}" for name, (_, value) in zip(names, variant, strict=True))
