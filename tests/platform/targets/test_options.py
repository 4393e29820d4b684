"""Options of targets: from arguments, variables and defaults; what is missing or unknown is refused by name."""

import pytest

from pilotlight.errors import UsageError
from pilotlight.targets import table
from pilotlight.targets.options import Option, check_missing, parse_options, resolve_options
from pilotlight.targets.slurm import options_and_checks, script

PARTITION = Option("partition", "partition of the jobs", required=True, variables=("SLURM_PARTITION",))
OPTIONS = (PARTITION, Option("namespace", "", default="default"))


def test_options_come_from_flags_then_variables_then_defaults() -> None:
    given, environ = {"partition": "gpu"}, {"SLURM_PARTITION": "cpu"}
    assert resolve_options(OPTIONS, given, environ) == ({"partition": "gpu", "namespace": "default"}, [])
    assert resolve_options(OPTIONS, {}, environ)[0]["partition"] == "cpu"


def test_a_missing_option_is_refused_by_name_with_flag_and_variable() -> None:
    missing = resolve_options(OPTIONS, {}, {})[1]
    assert missing == [PARTITION]
    with pytest.raises(UsageError, match="slurm needs partition") as refused:
        check_missing(missing, "slurm")
    assert "--partition" in refused.value.hint
    assert "SLURM_PARTITION" in refused.value.hint


def test_an_option_that_only_some_images_need_is_missing_for_those() -> None:
    pull = Option("image_pull_secret", "", needed_for="nvcr.io/")
    assert resolve_options((pull,), {}, {}, "pilotlight/predictor:1")[1] == []
    assert resolve_options((pull,), {}, {}, "nvcr.io/x:1")[1] == [pull]


def test_an_option_of_another_platform_is_refused() -> None:
    with pytest.raises(UsageError, match="--resource-shape is not an option of this platform"):
        resolve_options(OPTIONS, {"resource_shape": "x"}, {})


def test_a_value_that_is_no_choice_is_refused() -> None:
    assert table.options_of("slurm", {"container": "pyxis"}, {}) == {"container": "pyxis", "address": "tunnel"}
    for target, name, message in (
        ("slurm", "address", "address = foo, must be one of tunnel, node"),
        ("slurm", "container", "container = foo, must be one of pyxis, enroot, apptainer, singularity, none"),
        ("brev", "address", "address = foo, must be one of tunnel, instance"),
    ):
        with pytest.raises(UsageError, match=message):
            table.options_of(target, {name: "foo"}, {})


def test_slurm_has_a_command_for_each_container() -> None:
    assert {*script.CONTAINERS} == {*options_and_checks.CONTAINERS}


def test_pairs_are_names_and_values() -> None:
    assert parse_options(("partition=gpu", "mounts=/a:/b,/c=d:/e")) == {"partition": "gpu", "mounts": "/a:/b,/c=d:/e"}
    for wrong in ("partition", "partition="):
        with pytest.raises(UsageError, match=f"--target-option {wrong} must be NAME=VALUE"):
            parse_options((wrong,))
