"""One embedded platform for the microservices and batch jobs of all tests that need no home of their own."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.embedded import Platform

# Of platforms that the product itself starts.
PORTS = dict.fromkeys(("PILOTLIGHT_GATEWAY_PORT", "PILOTLIGHT_API_PORT", "PILOTLIGHT_SERVICE_PORTS"), "0")
QUICK = {"PILOTLIGHT_PROMETHEUS": "", "PILOTLIGHT_PILOT_LIGHT": "off"}


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    # A model must see none of these.
    hidden = {"WORKSPACE_OTHER__KEY": "of another team", "TAO_ADMIN_KEY": "never", "TAO_LOGGING_SERVER_URL": "never"}
    env = {**QUICK, **hidden}
    with Platform(tmp_path_factory.mktemp("embedded") / "home", env) as platform:
        yield platform


def predictors(job_id: str) -> list[int]:
    """Process ids of the predictors of a microservice or batch job, without the shims that note their ends."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            own = f"TAO_API_JOB_ID={job_id}".encode() in (folder / "environ").read_bytes().split(b"\0")
            if own and b"pilotlight-shim" not in (folder / "cmdline").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return [pid for pid in found if pid != os.getpid()]
