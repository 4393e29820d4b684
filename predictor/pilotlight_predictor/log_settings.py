"""Triton's log settings, changed while the server runs.

`log_info`, `log_warning` and `log_error` enable single levels, `log_verbose_level` above 0 enables debug lines;
`log_file` is a file in --files-dir; `log_format`: ISO8601 for text lines, default for the format set at start.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pilotlight_predictor.errors import BadRequest, Forbidden
from pilotlight_predictor.logs import LEVELS, LineHandler, TextFormatter, line_handler

FORMATS: Final = ("default", "ISO8601")
_SWITCHES: Final = {
    "log_info": (logging.INFO,),
    "log_warning": (logging.WARNING,),
    "log_error": (logging.ERROR, logging.CRITICAL),
}


class LogSettings:
    """`level`: minimum level at start; `folder`: --files-dir, empty for none."""

    def __init__(self, level: str, folder: str) -> None:
        least = LEVELS[level.upper()]  # type: ignore[index]
        self._folder = Path(folder) if folder else None
        self._values: dict[str, Any] = {
            "log_file": "",
            **{key: least <= numbers[0] for key, numbers in _SWITCHES.items()},
            "log_verbose_level": 1 if least <= logging.DEBUG else 0,
            "log_format": "default",
        }

    def values(self) -> dict[str, Any]:
        return dict(self._values)

    def change(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Apply changes, all or none, and return the settings. Raises BadRequest or Forbidden."""
        updated = {**self._values, **{key: self._checked(key, value) for key, value in changes.items()}}
        handler = line_handler()
        if handler is not None:
            self._apply(updated, handler)
        self._values = updated
        return self.values()

    def _checked(self, key: str, value: Any) -> Any:
        if key not in self._values:
            raise BadRequest(f"{key[:100]} is no log setting; there are {', '.join(self._values)}")
        if key in _SWITCHES and not isinstance(value, bool):
            raise BadRequest(f"{key} = {value!r}, must be true or false")
        if key == "log_verbose_level" and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise BadRequest(f"{key} = {value!r}, must be an integer of 0 or more")
        if key == "log_verbose_level" and value >= 1 << 32:
            raise BadRequest(f"{key} = {value}, must be less than {1 << 32}")
        if key == "log_format" and value not in FORMATS:
            raise BadRequest(f"{key} = {value!r}, must be one of {', '.join(FORMATS)}")
        if key == "log_file" and value != "":
            self._check_file(value)
        return value

    def _check_file(self, value: Any) -> None:
        if self._folder is None:
            raise Forbidden("log_file: this server writes no files that a call names (--files-dir)")
        if not isinstance(value, str) or "/" in value or "\0" in value or value in {".", ".."} or len(value) > 200:
            raise BadRequest(
                f"log_file = {str(value)[:200]!r}, must be the name of a file in --files-dir, without folders"
            )

    def _apply(self, updated: Mapping[str, Any], handler: LineHandler) -> None:
        if updated["log_file"] != self._values["log_file"]:
            self._redirect(updated["log_file"], handler)
        on = {number for key, numbers in _SWITCHES.items() if updated[key] for number in numbers}
        if updated["log_verbose_level"]:
            on.add(logging.DEBUG)
        handler.show(frozenset(on))
        handler.setFormatter(TextFormatter() if updated["log_format"] == "ISO8601" else handler.first_formatter)

    def _redirect(self, name: str, handler: LineHandler) -> None:
        try:
            handler.redirect(self._folder / name if name and self._folder is not None else None)
        except OSError as error:
            raise BadRequest(f"log_file = {name!r}, cannot be opened in --files-dir: {error.strerror}") from None
