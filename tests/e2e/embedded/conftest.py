"""The embedded platform that the tests of a module share, emptied after each of them."""

from collections.abc import Iterator

import pytest
from tests.embedded import Platform


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    with Platform(tmp_path_factory.mktemp("shared") / "home") as running:
        yield running


@pytest.fixture
def platform(shared: Platform) -> Iterator[Platform]:
    yield shared
    shared.empty()
