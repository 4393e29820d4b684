"""How a test asks the judges: assert that manifests are valid, or skip with the reason why nobody can tell.

`PILOTLIGHT_REQUIRE_JUDGES=1`, as continuous integration sets it, turns such a skip into a failure.
"""

import os
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import pytest
from tests.judges.gomodules import Unavailable
from tests.judges.schemas import validate


def assert_valid(manifests: Iterable[Mapping[str, Any]]) -> None:
    """Every mistake of every manifest at once, each with the object it is in."""
    try:
        found = [
            f"{each.get('kind')} {each.get('metadata', {}).get('name')}: {mistake}"
            for each in manifests
            for mistake in validate(each)
        ]
    except Unavailable as reason:
        absent(reason)
    assert not found, "\n".join(found)


def absent(reason: Unavailable) -> NoReturn:
    if os.environ.get("PILOTLIGHT_REQUIRE_JUDGES"):
        pytest.fail(f"a judge is required here: {reason}")
    pytest.skip(str(reason))
