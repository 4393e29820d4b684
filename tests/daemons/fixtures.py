"""Daemons that tests of several folders share, each started once in a run; tests/conftest.py offers them to all.

Modules of daemons are imported where a fixture starts one: most runs need none.
"""

from collections.abc import Iterator

import pytest
from tests.daemons.availability import available, base_environment


@pytest.fixture(scope="session")
def docker_engine() -> Iterator[dict[str, str]]:
    """The environment of who calls a real Docker, which has the predictor's image."""
    from tests.daemons.docker_daemon import docker

    with available(docker(base_environment())) as environ:
        yield environ


@pytest.fixture(scope="session")
def slurm_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of who submits to a real Slurm of one node, this machine."""
    from tests.daemons.slurm_daemons import slurm

    with available(slurm(tmp_path_factory.mktemp("slurm"), base_environment())) as environ:
        yield environ
