"""The two generations of clients, each with its own protos."""

import pytest
from tests.predictor.protocols.trtis.judge import Judge


@pytest.fixture(scope="session")
def old(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    return Judge("0.7", tmp_path_factory.mktemp("trtis_0_7"))


@pytest.fixture(scope="session")
def new(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    return Judge("1.0", tmp_path_factory.mktemp("trtis_1_0"))
