"""The contract of targets, kept by processes of this machine."""

from collections.abc import Iterator

import pytest
from tests.embedded import IRIS, Platform
from tests.platform.targets.target_contract import TargetContract, TargetGround


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TargetGround]:
    with Platform(tmp_path_factory.mktemp("contract") / "home") as platform:
        yield TargetGround(platform, IRIS.as_uri(), lambda: [str(pid) for pid in sorted(platform.replicas())])


class TestLocal(TargetContract):
    pass
