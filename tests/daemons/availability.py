"""What a test does where a daemon cannot run: it skips with the reason.

`PILOTLIGHT_REQUIRE_PLATFORMS=1`, as the workflow on GitHub sets it, turns such a skip into a failure.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TypeVar

import pytest

T = TypeVar("T")
FOREIGN = ("PILOTLIGHT_", "INFERENCE_", "SLURM_", "SBATCH_", "DOCKER_", "IMAGE_")


class Unavailable(Exception):
    """Why a daemon or its packages cannot be had here."""


@contextmanager
def available(daemon: AbstractContextManager[T]) -> Iterator[T]:
    """Enter it; skip, or fail where platforms are required, if that raises Unavailable."""
    with ExitStack() as stack:
        try:
            running = stack.enter_context(daemon)
        except Unavailable as reason:
            if os.environ.get("PILOTLIGHT_REQUIRE_PLATFORMS"):
                pytest.fail(str(reason))
            pytest.skip(str(reason))
        yield running


def base_environment() -> dict[str, str]:
    """This process's, without what would lead to another daemon or platform."""
    return {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
