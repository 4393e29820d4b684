"""Fixtures of all tests: the real predictor, started once for many of them; and which examples properties are tried on.

`make test` tries the same ones each time, so that it says of a change what it says of it tomorrow; `make test-long`
looks for others. No example has a time limit, nor has the making of all: on a busy machine any may take seconds.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from tests.daemons.fixtures import docker_engine, slurm_cluster  # noqa: F401
from tests.serving import RunningServer

UNHURRIED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("steady", derandomize=True, **UNHURRIED)
settings.register_profile("seeking", **UNHURRIED)
settings.load_profile(os.environ.get("PILOTLIGHT_EXAMPLES", "steady"))

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


def pytest_make_parametrize_id(val: object) -> str | None:
    """Bytes are named by their length: packed ones hold the second they were packed in, and all workers must
    collect the same names."""
    return f"{len(val)}-bytes" if isinstance(val, bytes) and len(val) > 32 else None
