"""Fixtures of all tests: the real predictor, started once for many of them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.serving import RunningServer

Serve = Callable[..., RunningServer]


def _starter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    with ExitStack() as stack:

        def start(repository: Path | None = None, *flags: str, **how: Any) -> RunningServer:
            named = () if repository is None else ("--model-repository", str(repository))
            return stack.enter_context(RunningServer(tmp_path_factory.mktemp("log"), *named, *flags, **how))

        yield start


@pytest.fixture
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """serve(repository, *flags): a predictor that ends with the test."""
    yield from _starter(tmp_path_factory)


@pytest.fixture(scope="module")
def serve_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """As `serve`, for servers that all tests of a module share."""
    yield from _starter(tmp_path_factory)


@pytest.fixture(scope="session")
def serve_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """As `serve`, for servers that the whole run shares: no test may change their models."""
    yield from _starter(tmp_path_factory)
