"""What one source of settings said: values that hold, values it only implies, and what is wrong with it.

Each of `flags.py`, `environment.py` and `document.py` fills a `Reading`; `parse.py` merges them.
"""

from collections.abc import Iterable
from typing import Any

from pilotlight_predictor.settings.table import Row


class Reading:
    """`origins` remembers, per key, the flag, variable or file:line:column that it came from."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.implied: dict[str, Any] = {}
        self.origins: dict[str, str] = {}
        self.problems: list[str] = []
        self.warnings: list[str] = []
        self.incomplete = False  # part of the source was passed over, so what is missing may have stood there

    def take(self, row: Row, text: str, origin: str) -> None:
        """Reads one value; a setting that may be repeated gathers, any other keeps the last."""
        try:
            value = row.kind.read(text)
        except ValueError:
            self.refuse(origin, row.key, text, row.kind.must)
            return
        if row.kind.many == "list":
            value = (*self.values.get(row.key, ()), value)
        elif row.kind.many == "map":
            value = {**self.values.get(row.key, {}), value[0]: value[1]}
        self.values[row.key] = value
        self.origins[row.key] = origin

    def refuse(self, origin: str, name: str, text: object, must: str) -> None:
        self.problems.append(f"{origin}: {name} = {text}, must be {must}")

    def pass_over(self, sentence: str) -> None:
        """Something that cannot be read as a setting at all, whatever its author meant to set."""
        self.problems.append(sentence)
        self.incomplete = True


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a sentence: the nearest of `known`, or nothing."""
    from difflib import get_close_matches

    near = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""
