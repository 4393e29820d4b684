"""Command line of the predictor, run by the same Python interpreter."""

import os
import sys
from typing import NoReturn

from pilotlight import contract


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "pilotlight_predictor", *words]


def become(verb: str, *words: str) -> NoReturn:
    """Replace this process with the predictor, so that signals and the exit code are its own; its help names `verb`."""
    environ = {**os.environ, contract.ENV_PROGRAM: f"platformctl {verb}"}
    os.execve(sys.executable, command(*words), environ)  # noqa: S606 - itself, no shell
