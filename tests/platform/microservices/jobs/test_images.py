"""Which image a network runs in: config file, key, override, defaults, versions, and what passes unchanged."""

import json
from pathlib import Path

import pytest

from pilotlight import __version__, contract
from pilotlight.errors import UsageError
from pilotlight.microservices.registry import container_command, model_kinds

OWN = "registry.example/team/image:1"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.config.json").write_text(json.dumps({"api_params": {"image": "MINE"}}))
    (tmp_path / "empty.config.json").write_text(json.dumps({"api_params": {"image": ""}}))
    (tmp_path / "service.json").write_text(json.dumps({"docker_image_defaults": {"mapping": {"MINE": "team.mine"}}}))
    (tmp_path / "versions.yaml").write_text(f"images: {{team: {{mine: '{OWN}'}}}}\n")
    return tmp_path


def test_the_chain_from_file_over_key_and_default_to_version() -> None:
    assert container_command.resolve("cosmos-rl", {}).startswith("nvcr.io/")
    assert contract.is_predictor_image(container_command.resolve("pilotlight", {}))
    assert container_command.resolve("pilotlight", {}) == f"pilotlight/predictor:{__version__}"


def test_files_of_ones_own_join_and_win(folder: Path) -> None:
    environ = {container_command.ENV_FOLDER: str(folder)}
    assert container_command.resolve("mine", environ) == OWN
    assert container_command.resolve("cosmos-rl", environ).startswith("nvcr.io/")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (OWN, OWN),
        ("localhost:5000/a@sha256:00", "localhost:5000/a@sha256:00"),
        ("pilotlight.predictor", "pilotlight/predictor:0.1.0"),
    ],
)
def test_the_environment_overrides_by_uri_or_by_dotted_key(given: str, expected: str) -> None:
    assert container_command.resolve("cosmos-rl", {"IMAGE_COSMOS_RL": given}) == expected


@pytest.mark.parametrize("arch", ["nobody-has-a-file-for-it", "empty"])
def test_without_a_file_or_a_key_the_default_key_holds(arch: str, folder: Path) -> None:
    environ = {container_command.ENV_FOLDER: str(folder), "IMAGE_COSMOS_RL": OWN}
    assert container_command.resolve(arch, environ) == OWN


def test_a_key_that_nothing_stands_for_names_the_variable_that_helps() -> None:
    with pytest.raises(UsageError) as refused:
        container_command.resolve_key("NEW", {}, {}, {})
    assert "IMAGE_NEW" in refused.value.hint
    with pytest.raises(UsageError, match=r"mapping.NEW = a.b, which is not in images of versions.yaml"):
        container_command.resolve_key("NEW", {"NEW": "a.b"}, {"images": {"a": {}}}, {})


def test_the_word_folder_makes_the_model_a_directory() -> None:
    assert container_command.arch("cosmos-rl", {}).folder
    assert not container_command.arch("cosmos-predict2.5", {}).folder


@pytest.mark.parametrize("name", ["../../etc/passwd", "", "a b", "a/b"])
def test_a_name_that_is_no_name_reads_no_file(name: str) -> None:
    with pytest.raises(UsageError, match="network_arch"):
        container_command.arch(name, {})


def test_a_folder_that_is_not_there_and_a_file_that_is_broken_are_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=container_command.ENV_FOLDER):
        container_command.arch("cosmos-rl", {container_command.ENV_FOLDER: str(tmp_path / "none")})
    (tmp_path / "bad.config.json").write_text("{")
    with pytest.raises(UsageError, match=r"bad\.config\.json"):
        container_command.arch("bad", {container_command.ENV_FOLDER: str(tmp_path)})


def test_every_file_of_the_package_has_an_image_but_for_the_one_that_is_published_nowhere() -> None:
    names = [name for name in container_command.names({}) if name != "cosmos-predict2.5"]
    assert len(names) > 5
    assert all(container_command.is_uri(container_command.resolve(name, {})) for name in names)
    with pytest.raises(UsageError) as refused:
        container_command.resolve("cosmos-predict2.5", {})
    assert "IMAGE_COSMOS_PREDICT25" in refused.value.hint
    assert container_command.resolve("cosmos-predict2.5", {"IMAGE_COSMOS_PREDICT25": OWN}) == OWN


def test_every_network_whose_parameters_are_known_can_be_started() -> None:
    assert set(model_kinds.networks()) <= set(container_command.names({}))
