"""Daemons that several modules use, each started once."""

from collections.abc import Iterator

import pytest
from tests.platform.microservices.platforms.contract import clean_environment
from tests.platform.microservices.platforms.debian import Unavailable
from tests.platform.microservices.platforms.docker_daemon import docker


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of who calls a real Docker."""
    running = docker(clean_environment(tmp_path_factory.mktemp("docker")))
    try:
        environ = running.__enter__()
    except Unavailable as reason:
        pytest.skip(str(reason))
    try:
        yield environ
    finally:
        running.__exit__(None, None, None)
