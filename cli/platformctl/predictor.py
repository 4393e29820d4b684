"""The predictor as a program: the command line that starts one with the Python that runs this program."""

import os
import sys
from typing import NoReturn

from pilotlight import contract


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "pilotlight_predictor", *words]


def become(verb: str, *words: str) -> NoReturn:
    """Puts the predictor in this program's place: signals and the exit code are then its own, its help names `verb`."""
    environ = {**os.environ, contract.ENV_PROGRAM: f"platformctl {verb}"}
    os.execve(sys.executable, command(*words), environ)  # noqa: S606 - itself, no shell
