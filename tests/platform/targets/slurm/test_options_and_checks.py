"""`doctor --target slurm`: a cluster whose programs are stand-ins that print what Slurm prints."""

import os
from pathlib import Path

import pytest

from pilotlight.targets import table
from pilotlight.targets.slurm import options_and_checks
from pilotlight.targets.target import Finding

PARTITIONS = "gpu|up|2\nold|down|1\n"
NODES = "NodeName=n1 NodeHostName=n1.hpc OS=Linux 6.1\nNodeName=n2 NodeHostName=n2.hpc\n"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    for name, printed in {"sinfo": PARTITIONS, "scontrol": NODES}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\nprintf '%s' '{printed}'\n")
        (tmp_path / name).chmod(0o755)
    return {"PATH": f"{tmp_path}:/usr/bin:/bin", "PILOTLIGHT_HOME": str(tmp_path / "home")}


def checked(environ: dict[str, str], **options: str) -> dict[str, Finding]:
    return {each.check: each for each in options_and_checks.findings(environ, options)}


def test_a_partition_must_exist_and_be_up(environ: dict[str, str]) -> None:
    assert checked(environ, partition="gpu")["partition"].level == "ok"
    assert checked(environ, partition="old")["partition"] == Finding(
        "fail", "partition", "old is down", "choose another"
    )
    unknown, missing = (checked(environ, **options)["partition"] for options in ({"partition": "x"}, {}))
    assert unknown.message == "x: the cluster has no such partition"
    assert (missing.message, missing.fix) == ("not set", "--target-option partition=gpu")


def test_a_controller_that_does_not_answer_is_the_only_finding(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "sinfo").write_text("#!/bin/sh\necho 'slurm_load_partitions: Unable to contact' >&2\nexit 1\n")
    [found] = options_and_checks.findings(environ, {"partition": "gpu"})
    assert (found.level, found.check) == ("fail", "controller")
    assert "Unable to contact" in found.message
    [missing] = options_and_checks.findings({**environ, "PATH": "/nowhere"}, {})
    assert "sinfo is not on the PATH" in missing.message


def test_files_that_other_nodes_may_not_see_are_a_warning(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [each for each in options_and_checks.findings(environ, {"partition": "gpu"}) if each.check == "files"]
    assert len(files) == 2
    assert str(tmp_path / "home") in files[0].message
    monkeypatch.setattr(options_and_checks, "LOCAL_FILE_SYSTEMS", frozenset())
    assert checked(environ, partition="gpu")["files"].level == "ok"
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\necho NodeName=a NodeHostName={os.uname().nodename}\n")
    assert checked(environ, partition="gpu")["files"].message == "this machine is the only node"


def test_ssh_is_needed_unless_nodes_are_reached_by_their_address(environ: dict[str, str], tmp_path: Path) -> None:
    bare = {**environ, "PATH": str(tmp_path)}
    (tmp_path / "printf").symlink_to("/usr/bin/printf")
    assert checked(bare, partition="gpu", address="tunnel")["ssh"].level == "fail"
    assert "ssh" not in checked(bare, partition="gpu", address="node")


def test_options_come_from_variables_and_a_partition_is_needed() -> None:
    values = table.options_of("slurm", {"time": "1:00"}, {"SLURM_PARTITION": "gpu", "SLURM_ACCOUNT": "team"})
    assert values == {"partition": "gpu", "account": "team", "time": "1:00", "address": "tunnel"}
    with pytest.raises(Exception, match="slurm needs partition"):
        table.options_of("slurm", {}, {}, complete=True)
