"""Arguments of `fetch`, `pin` and `compile`."""

import argparse
from typing import NoReturn


class CommandParser(argparse.ArgumentParser):
    """Parser that reports errors as platformctl does: the error, then the command that shows the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}\n  {self.prog} --help\n")
