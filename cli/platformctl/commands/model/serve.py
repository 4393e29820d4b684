"""`platformctl serve FLAGS`: exec the predictor, which reads the flags itself."""

from itertools import pairwise
from pathlib import Path
from typing import Final

import click

from platformctl import output, targets

_PATHS: Final = ("--model-path", "--model-repository", "--model-store")


@click.command(add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def serve(flags: tuple[str, ...]) -> None:
    """Serve models; all flags are the predictor's (docs/reference/settings.md)."""
    if output.chosen() or any(flag.partition("=")[0] in ("-o", "--output") for flag in flags):
        raise click.UsageError("serve prints no data, so it has no -o; --log-format json makes its log JSON")
    targets.become("serve", *(["--exit-on-error"] if _misses_model(flags) else []), *flags)


def _misses_model(flags: tuple[str, ...]) -> bool:
    """Return whether a flag names a local path that does not exist."""
    words = [word for flag in flags for word in (flag.split("=", 1) if flag.startswith("--") else [flag])]
    named = (path for name, path in pairwise(words) if name in _PATHS)
    return any("://" not in path and not Path(path).exists() for path in named)
