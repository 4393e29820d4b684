"""One server that the tests of all dialects share."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.predictor.zoo import write_zoo
from tests.serving import RunningServer


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_zoo(tmp_path_factory.mktemp("zoo"))


@pytest.fixture(scope="session")
def text_models(pytestconfig: pytest.Config) -> Path:
    """Where small language models are kept from one run to the next (text/tiny.py)."""
    return pytestconfig.cache.mkdir("text-models")


@pytest.fixture(scope="session")
def server(zoo: Path, serve_session: Callable[..., RunningServer]) -> RunningServer:
    """Serves the zoo with no flags. No test may change its models."""
    return serve_session(zoo)
