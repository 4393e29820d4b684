"""What handlers work with, opened when first needed."""

import asyncio
from pathlib import Path

import pytest

from pilotlight.errors import Conflict
from pilotlight.microservices.api.api_context import ApiContext
from pilotlight.microservices.registry.database import FILE
from pilotlight.targets.local.home_directory import Home


def test_a_file_that_cannot_be_opened_does_not_lock_us_out_of_it(tmp_path: Path) -> None:
    desk = ApiContext(Home(tmp_path), {})
    (tmp_path / FILE).mkdir()
    with pytest.raises(Exception) as raised:
        _ = desk.store
    assert not isinstance(raised.value, Conflict)
    (tmp_path / FILE).rmdir()
    assert desk.store.workspaces("acme") == []
    with pytest.raises(Conflict, match="another process already serves"):
        _ = ApiContext(Home(tmp_path), {}).store
    asyncio.run(desk.close())
