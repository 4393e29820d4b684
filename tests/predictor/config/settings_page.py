"""Text of docs/reference/settings.md, made from the table of settings."""

from collections.abc import Iterator
from dataclasses import Field, fields
from typing import Any

from pilotlight_predictor.config.help import default_text, shown
from pilotlight_predictor.config.read_sources import API_VERSION
from pilotlight_predictor.config.setting_definitions import Settings
from pilotlight_predictor.config.settings_table import ROWS

PAGE = f"""# Settings of the predictor

<!-- made by `make docs`; change the rows in config/setting_definitions.py instead -->

All settings of `platformctl serve`. Each can be a flag, an environment variable or a key of the file given by
`--config` (or `INFERENCE_CONFIG`); precedence is flag, variable, file, default. A service gets them as variables of its
model: `platformctl deploy NAME --set 'spec.predictor.model.env=[{{name: INFERENCE_THREADS, value: "2"}}]'`.

`--flag value` and `--flag=value` are equal, as are dashes and underscores. Repeatable settings are comma-separated in
a variable and a list in the file. The file may contain `apiVersion: {API_VERSION}`. Invalid values exit with code 2
and list every error.
"""
SAFEGUARDS = """
Defaults for `/predict`: 10 MB, 1000 requests a minute, sequences of 512, 30 s, 100 messages a second on a stream
([details](http-api.md#predict)).
"""


def page() -> str:
    """Return docs/reference/settings.md."""
    sections = [item for item in fields(Settings) if item.name != "warnings"]
    return "".join([PAGE, *(part for item in sections for part in _section(item)), *_foreign_flags()])


def _section(item: "Field[Any]") -> Iterator[str]:
    yield f"\n## {item.name}\n\n{type(item.default).__doc__}\n{SAFEGUARDS if item.name == 'safeguards' else ''}\n"
    yield "| key | flags | variables | value | default | meaning |\n|---|---|---|---|---|---|\n"
    for row in ROWS:
        if row.key.startswith(f"{item.name}."):
            default = f"`{shown(row.default)}`" if default_text(row) else ""
            names = (_code(row.paths), _code(row.flags), _code(row.variables))
            yield f"| {' | '.join((*names, row.kind.must, default, row.help))} |\n"


def _code(words: Any) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _foreign_flags() -> Iterator[str]:
    yield "\n## Flags of Triton and TensorRT Inference Server\n\n"
    yield "Flags of these servers are aliases of settings above, translated, or accepted with a warning: [all of them]"
    yield "(../how-to/migrate-triton.md#flags).\n"
