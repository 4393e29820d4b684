"""What the embedded platform's targets offer a plan."""

from dataclasses import fields

import pytest

from pilotlight.plan.types import Capabilities
from pilotlight.targets.local.capabilities import capabilities_of


@pytest.mark.parametrize("target", ["local", "docker", "slurm"])
def test_their_names_are_those_of_the_plan(target: str) -> None:
    offered = capabilities_of(target, {})
    assert offered.keys() <= {field.name for field in fields(Capabilities)}
    assert (offered["target"], offered["access_at_gateway"]) == (target, True)


def test_an_image_has_a_version_only_where_one_is_pulled() -> None:
    published = Capabilities().image
    assert Capabilities(**capabilities_of("docker", {})).image == published
    assert Capabilities(**capabilities_of("slurm", {"container": "apptainer"})).image == published
    for installed in (capabilities_of("local", {}), capabilities_of("slurm", {"container": "none"})):
        assert installed["image"] == "pilotlight/predictor"
    assert capabilities_of("slurm", {"partition": "gpu"})["target_options"] == {"partition": "gpu"}
