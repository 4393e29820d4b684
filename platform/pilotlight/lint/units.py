"""Durations and quantities as Kubernetes objects spell them."""

import re
from typing import Final

DURATION: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
DURATION_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
QUANTITY: Final = re.compile(r"([+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)(m|k|[KMGTPE]i?)?")
QUANTITY_UNITS: Final = {
    "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50, "Ei": 2.0**60,
}  # fmt: skip


def duration_seconds(text: str) -> float | None:
    """Go's durations: `90s`, `1h30m`, `1.5s`. None for anything else; `10` without a unit is none of them."""
    sign, body = (-1.0, text[1:]) if text.startswith("-") else (1.0, text.removeprefix("+"))
    if body == "0":
        return 0.0
    parts = DURATION.findall(body)
    if not parts or "".join(number + unit for number, unit in parts) != body:
        return None
    return sign * sum(float(number) * DURATION_UNITS[unit] for number, unit in parts)


def quantity(text: str) -> float | None:
    """Kubernetes quantities: `500m`, `16Gi`, `2e9`."""
    found = QUANTITY.fullmatch(text)
    return float(found[1]) * QUANTITY_UNITS[found[2] or ""] if found else None


def gigabytes(size: float) -> str:
    return f"{size / 2**30:.0f}Gi" if size >= 100 * 2**30 else f"{size / 2**30:.3g}Gi"
