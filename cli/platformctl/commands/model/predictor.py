"""`platformctl serve`, `fetch` and `compile`: exec the predictor, which reads its flags itself."""

import os
import sys
from itertools import pairwise
from pathlib import Path
from typing import Final

import click

from pilotlight.wire.model_formats import model_name, split_object
from platformctl import output, targets

_PATHS: Final = ("--model-path", "--model-dir", "--model-repository", "--model-store")
_OWN_NAME: Final = frozenset({"INFERENCE_MODEL_NAME", "INFERENCE_CONFIG"})
_EXIT: Final = "--exit-on-error"
_UNKNOWN: Final = {"ignore_unknown_options": True}  # they are the predictor's


@click.command(add_help_option=False, context_settings=_UNKNOWN)
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def serve(flags: tuple[str, ...]) -> None:
    """Serve models in the foreground; all flags are the predictor's (docs/reference/settings.md).

    Example: platformctl serve --model-path model.onnx
    """
    if output.chosen() or any(flag.partition("=")[0] in ("-o", "--output") for flag in flags):
        raise click.UsageError("serve prints no data, so it has no -o; --log-format json makes its log JSON")
    targets.become("serve", *([_EXIT] if _exits_on_error(flags) else []), *_name(flags), *flags)


def _name(flags: tuple[str, ...]) -> list[str]:
    """Return the flag that names the model as `deploy` does; none where another source may name it."""
    paths, own = _values(flags, "--model-path", "--model-dir"), _values(flags, "--model-name", "--config")
    if len(paths) != 1 or own or _OWN_NAME & os.environ.keys() or _misses_model(flags):
        return []
    return ["--model-name", model_name(paths[0])]


def _exits_on_error(flags: tuple[str, ...]) -> bool:
    """Return whether a model that fails to load ends the server, where neither flag nor variable decides.

    On a terminal a person waits for it. Elsewhere it stays up, unready, so that probes and /status report the reason.
    """
    if "INFERENCE_EXIT_ON_ERROR" in os.environ:
        return False
    return sys.stderr.isatty() or _misses_model(flags)


def _misses_model(flags: tuple[str, ...]) -> bool:
    """Return whether a flag names a local path that does not exist."""
    named = (split_object(path)[0] for path in _values(flags, *_PATHS))
    return any("://" not in path and not Path(path).exists() for path in named)


def _values(flags: tuple[str, ...], *names: str) -> list[str]:
    words = [word for flag in flags for word in (flag.split("=", 1) if flag.startswith("--") else [flag])]
    return [value for name, value in pairwise(words) if name.replace("_", "-") in names]


@click.command(add_help_option=False, context_settings=_UNKNOWN)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def fetch(words: tuple[str, ...]) -> None:
    """Download a model from a URI into a directory.

    Example: platformctl fetch s3://bucket/model ./model
    """
    _become_tool("fetch", words)


@click.command(add_help_option=False, context_settings=_UNKNOWN)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def compile(words: tuple[str, ...]) -> None:  # noqa: A001 - the verb's name
    """Compile a torch model on the hardware that will serve it, so that it starts without torch.

    Example: platformctl compile ./model --device cuda
    """
    _become_tool("compile", words)


def _become_tool(name: str, words: tuple[str, ...]) -> None:
    output_flag = ["-o", output.chosen()] if output.chosen() else []  # first: an -o among the words wins
    targets.become(name, name, *output_flag, *words)
