"""Result of parsing one source of settings: values, implied values, problems and warnings.

Each of `flags.py`, `environment.py` and `document.py` fills a ParsedSource; `parse.py` merges them.
"""

from collections.abc import Iterable
from typing import Any

from pilotlight_predictor.settings.table import SettingRow


class ParsedSource:
    """`origins`: the flag, variable or file:line:column of each key."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.implied: dict[str, Any] = {}
        self.origins: dict[str, str] = {}
        self.problems: list[str] = []
        self.warnings: list[str] = []
        self.incomplete = False  # a part was skipped, which may have contained settings that seem to be missing

    def add(self, row: SettingRow, text: str, origin: str) -> None:
        """Parse one value; repeatable settings collect their values, for others the last one wins."""
        try:
            value = row.kind.read(text)
        except ValueError:
            self.reject(origin, row.key, text, row.kind.must)
            return
        if row.kind.many == "list":
            value = (*self.values.get(row.key, ()), value)
        elif row.kind.many == "map":
            value = {**self.values.get(row.key, {}), value[0]: value[1]}
        self.values[row.key] = value
        self.origins[row.key] = origin

    def reject(self, origin: str, name: str, text: object, must: str) -> None:
        self.problems.append(f"{origin}: {name} = {text}, must be {must}")

    def skip(self, sentence: str) -> None:
        """Report a part of the source that cannot be parsed as a setting."""
        self.problems.append(sentence)
        self.incomplete = True


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a suffix for a message: the closest of `known`, or an empty string."""
    from difflib import get_close_matches

    near = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""
