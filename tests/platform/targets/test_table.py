"""Targets by name: what is connected to, which options it takes, and what is refused."""

from pathlib import Path

import pytest

from pilotlight.errors import NotFound, UsageError
from pilotlight.targets import table

SAMPLE = "tests.platform.targets.sample_target"


@pytest.fixture
def sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(table.MODULES, "docker", SAMPLE)


def test_an_unknown_target_is_refused_with_those_that_there_are(sample: None) -> None:
    with pytest.raises(UsageError, match="unknown target moon; known: local, kubernetes, "):
        table.connect("moon", {})
    with pytest.raises(UsageError, match=r"unknown target slrm; known: .*, brev; did you mean slurm\?"):
        table.check_name("slrm")


def test_options_come_from_arguments_and_variables(sample: None) -> None:
    environ = {"SAMPLE_PARTITION": "cpu"}
    assert table.options_of("docker", {"network": "host"}, environ) == {"partition": "cpu", "network": "host"}
    assert table.options_of("docker", {"partition": "gpu"}, environ, complete=True) == {"partition": "gpu"}
    assert table.options_of("docker", {}, {}) == {}


def test_missing_and_unknown_options_are_named_with_the_argument(sample: None) -> None:
    with pytest.raises(UsageError, match="docker needs partition: partition of the jobs") as missing:
        table.options_of("docker", {}, {}, complete=True)
    assert missing.value.hint == "--target-option partition=VALUE, or set SAMPLE_PARTITION"
    with pytest.raises(
        UsageError, match="--target-option pool is not an option of docker; options: network, partition"
    ):
        table.options_of("docker", {"pool": "x"}, {})
    with pytest.raises(UsageError, match="--target-option pool is not an option of local; options: none"):
        table.options_of("local", {"pool": "x"}, {})


@pytest.mark.parametrize("name", table.REMOTE)
def test_a_target_of_a_cloud_needs_no_control_process(name: str, tmp_path: Path) -> None:
    target = table.connect(name, {"PILOTLIGHT_HOME": str(tmp_path / "home")}, start=False, options={"a": "b"})
    assert (target.name, target.embedded) == (name, False)
    assert target.capabilities() == {"target": name, "target_options": {"a": "b"}}
    assert list(target.list(None)) == []


@pytest.mark.parametrize("name", ["local", "docker"])
def test_targets_of_the_embedded_platform_share_its_control_process(name: str, sample: None, tmp_path: Path) -> None:
    """Nothing runs in this home, and nothing is started."""
    with pytest.raises(NotFound, match="is not running"):
        table.connect(name, {"PILOTLIGHT_HOME": str(tmp_path)}, start=False)
