"""Text of docs/reference/settings.md, made from the table of settings."""

from collections.abc import Iterator
from dataclasses import Field, fields
from textwrap import wrap
from typing import Any

from pilotlight_predictor.config import compat
from pilotlight_predictor.config.help import default_text, shown
from pilotlight_predictor.config.read_sources import API_VERSION
from pilotlight_predictor.config.setting_definitions import Settings
from pilotlight_predictor.config.settings_table import ROWS

PAGE = f"""# Settings of the predictor

<!-- made by `make docs`; change the rows in config/setting_definitions.py instead -->

A setting is a flag, a variable or a key of the file that `--config` (or `INFERENCE_CONFIG`) names; the first of flag,
variable, file and default that is given holds. `--flag value` and `--flag=value` are the same, dashes and underscores
too. A setting that may be repeated is separated by commas in a variable and is a list in the file. The file may carry
`apiVersion: {API_VERSION}`. A value that cannot hold ends the start with exit code 2 and one sentence for
each mistake.
"""
SAFEGUARDS = """
The `/predict` dialect has them from the start: 10 MB, 1000 requests a minute, sequences of 512, 30 s, 100 messages a
second on a stream ([page](http-api.md#predict)).
"""


def page() -> str:
    """Return docs/reference/settings.md."""
    sections = [item for item in fields(Settings) if item.name != "warnings"]
    return "".join([PAGE, *(part for item in sections for part in _section(item)), *_foreign_flags()])


def _section(item: "Field[Any]") -> Iterator[str]:
    yield f"\n## {item.name}\n\n{type(item.default).__doc__}\n{SAFEGUARDS if item.name == 'safeguards' else ''}\n"
    yield "| key | flags | variables | value | default | what it does |\n|---|---|---|---|---|---|\n"
    for row in ROWS:
        if row.key.startswith(f"{item.name}."):
            default = f"`{shown(row.default)}`" if default_text(row) else ""
            names = (_code(row.paths), _code(row.flags), _code(row.variables))
            yield f"| {' | '.join((*names, row.kind.must, default, row.help))} |\n"


def _code(words: Any) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _foreign_flags() -> Iterator[str]:
    yield "\n## Flags of Triton and TensorRT Inference Server\n\n"
    yield "Those with the same meaning are in the tables above. These are translated:\n\n"
    yield from (f"- `{flag}`: {text}\n" for flag, text in compat.TRANSLATED.items())
    yield "\nThese protect the server and are therefore refused, with what to use instead:\n\n"
    yield from (f"- `{flag}`: {reason}\n" for flag, reason in compat.REFUSED.items())
    yield "\nThese are accepted with a warning and have no effect:\n\n"
    yield from (f"{line}\n" for line in wrap(_code(sorted(compat.IGNORED)), 118, break_on_hyphens=False))
