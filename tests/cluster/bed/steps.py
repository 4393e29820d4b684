"""Tells the person at the terminal what is going on: each step with the time it took."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


def say(line: str) -> None:
    print(line, flush=True)


class Steps:
    """The steps of one command. A step that fails prints nothing: its error will."""

    def __init__(self) -> None:
        self._begin = time.monotonic()

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        begin = time.monotonic()
        yield
        say(f"{time.monotonic() - begin:7.1f} s  {name}")

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begin
