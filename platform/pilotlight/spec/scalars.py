"""Values of plain YAML scalars as kubectl resolves them: YAML 1.1 booleans, Go integers, no sexagesimals, no dates.

kubectl's rules differ from PyYAML's (`1e3` is a number, `1:30` and
`2024-01-15` are text), so PyYAML's resolver is not used.
"""

import re
from typing import Final

Scalar = str | int | float | bool | None

_WORDS: Final[dict[str, Scalar]] = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
}
_MAY_BE_NUMBER: Final = frozenset("+-.0123456789")
_INTEGER: Final = re.compile(r"[-+]?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|0[oO]?[0-7]+|0|[1-9][0-9]*)")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
# Python limits the length of integer literals, and Go reads longer ones as floats too.
_LONGEST_INTEGER: Final = 300


def resolve(text: str) -> Scalar:
    """Return the value of an unquoted scalar."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in _MAY_BE_NUMBER:
        return text
    plain = text.replace("_", "")
    if len(plain) <= _LONGEST_INTEGER and _INTEGER.fullmatch(plain):
        return _integer(plain)
    if _FLOAT.fullmatch(plain):
        number = float(plain)
        return text if number in (float("inf"), float("-inf")) else number
    return text


def _integer(plain: str) -> int:
    """Parse an integer with Go's base prefixes; a leading zero alone means octal."""
    sign = -1 if plain[0] == "-" else 1
    digits = plain.lstrip("+-")
    if len(digits) > 1 and digits[0] == "0" and digits[1] in "01234567":
        return sign * int(digits, 8)
    return sign * int(digits, 0)


def key_text(value: Scalar) -> str | None:
    """Return a map key as JSON has it: numbers and booleans as text; None for null, which is no key."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
