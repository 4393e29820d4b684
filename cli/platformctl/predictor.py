"""The predictor as a program: the command line that starts one with the Python that runs this program."""

import os
import sys
from typing import NoReturn


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "pilotlight_predictor", *words]


def become(*words: str) -> NoReturn:
    """Puts the predictor in this program's place: signals and the exit code are then its own."""
    os.execv(sys.executable, command(*words))  # noqa: S606 - itself, no shell
