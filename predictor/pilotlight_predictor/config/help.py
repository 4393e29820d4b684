"""`--help`, generated from the table of settings."""

from collections.abc import Iterator
from itertools import groupby
from textwrap import wrap
from typing import Any

from pilotlight_predictor import __version__
from pilotlight_predictor.config.settings_table import CONFIG, ROWS, SettingRow

USAGE = """usage: {program} --model-path FILE|DIR|URI | --model-repository DIR|URI [flags]

Serves models. Every flag is also a variable INFERENCE_… and a key of inference.yaml (--config);
flag > variable > file > default. Dashes and underscores are the same; --flag value and --flag=value too.
"""


def info_text(flag: str, program: str) -> str:
    """Return the output of --help or --version; `program` is the command that started it."""
    if flag == "--version":
        return f"pilotlight {__version__}\n"
    return "\n".join([USAGE.format(program=program), *_help_lines(), "  --help, --version", ""])


def _help_lines() -> Iterator[str]:
    for name, rows in groupby((*ROWS, CONFIG), key=lambda row: row.key.partition(".")[0]):
        yield f"{name if name != CONFIG.key else 'file'}:"
        for row in rows:
            yield f"  {', '.join(row.flags)} {row.kind.metavar}"
            for line in wrap(f"{row.help}{default_text(row)}", 100):
                yield f"        {line}"
        yield ""


def default_text(row: SettingRow) -> str:
    return f" [{shown(row.default)}]" if row.default not in ("", None, (), {}) else ""


def shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.9g}" if isinstance(value, float) else str(value)
