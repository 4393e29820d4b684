"""What lies on disk: repositories, plain paths, names, versions and the choice of the model file."""

import json
import logging
from pathlib import Path

import pytest

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.repository.config_reader import config_from_json
from pilotlight_predictor.repository.layout import (
    check_source,
    choose_versions,
    is_repository,
    model_file,
    plain_source,
    scan,
    valid_model_name,
)
from pilotlight_predictor.repository.model_config import ModelConfig, VersionPolicy


def put(root: Path, *paths: str) -> Path:
    """Makes files, and directories where a path ends in a slash."""
    for path in paths:
        target = root / path
        if path.endswith("/"):
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text("")
    return root


def test_a_repository_is_its_visible_directories_by_name(tmp_path: Path) -> None:
    put(tmp_path, "b/config.pbtxt", "b/2/model.onnx", "b/0/model.onnx", "a/1/", ".git/1/", "..data/1/", "readme.md")
    first, second = scan(tmp_path)
    assert (first.name, first.versions, first.config_path) == ("a", {1: tmp_path / "a/1"}, None)
    assert (second.name, sorted(second.versions)) == ("b", [0, 2])
    assert second.config_path == tmp_path / "b/config.pbtxt"
    assert not second.plain


def test_versions_with_leading_zeros_are_passed_over_with_a_hint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, "m/1/", "m/01/", "m/1a/", "m/" + "9" * 30 + "/", "m/٣/")
    with caplog.at_level(logging.WARNING):
        assert scan(tmp_path)[0].versions == {1: tmp_path / "m/1"}
    assert "m/01: a version is a number without leading zeros" in caplog.text


def test_links_count_as_what_they_point_at_and_broken_ones_as_nothing(tmp_path: Path) -> None:
    """Kubernetes mounts a volume as links through ..data."""
    put(tmp_path, "store/1/model.onnx", "repo/..2026/m/1/model.onnx")
    (tmp_path / "repo/..data").symlink_to("..2026")
    (tmp_path / "repo/m").symlink_to("..data/m")
    (tmp_path / "repo/outside").symlink_to(tmp_path / "store")
    (tmp_path / "repo/gone").symlink_to(tmp_path / "nowhere")
    assert [(source.name, list(source.versions)) for source in scan(tmp_path / "repo")] == [
        ("m", [1]),
        ("outside", [1]),
    ]


def test_a_missing_repository_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadFailed, match="is not a directory"):
        scan(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["iris", "model..1", "...", "a b", "modèle", "a" * 255])
def test_ordinary_names_are_accepted(name: str) -> None:
    assert valid_model_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "a\0", "a\n", " a", "a ", "a" * 256, "\u202eevil"])
def test_names_that_could_mislead_are_refused(name: str) -> None:
    assert not valid_model_name(name)


def test_a_plain_file_is_version_one_of_a_model_of_its_name(tmp_path: Path) -> None:
    put(tmp_path, "iris.onnx", "other.onnx")
    source = plain_source(tmp_path / "iris.onnx", None)
    assert (source.name, source.versions, source.plain) == ("iris", {1: tmp_path / "iris.onnx"}, True)
    assert model_file(ModelConfig("iris"), source.versions[1], None) == tmp_path / "iris.onnx"
    assert plain_source(tmp_path / "iris.onnx", "flowers").name == "flowers"


@pytest.mark.parametrize(
    ("paths", "file"),
    [
        (["m/model.onnx"], "m/model.onnx"),
        (["m/resnet.onnx", "m/readme.md"], "m/resnet.onnx"),
        (["m/model.safetensors", "m/config.json"], "m/model.safetensors"),
        (["m/config.pbtxt", "m/model.onnx"], "m/model.onnx"),
        (["m/1/model.onnx", "m/2/model.onnx"], "m/2/model.onnx"),
        (["m/config.pbtxt", "m/3/model.pt"], "m/3/model.pt"),
    ],
)
def test_a_plain_directory_is_whatever_model_it_holds(tmp_path: Path, paths: list[str], file: str) -> None:
    source = plain_source(put(tmp_path, *paths) / "m", None)
    assert source.name == "m"
    assert model_file(ModelConfig("m"), source.versions[max(source.versions)], None) == tmp_path / file
    assert (source.config_path is not None) == ("m/config.pbtxt" in paths)


def test_a_saved_model_directory_is_a_model_itself(tmp_path: Path) -> None:
    source = plain_source(put(tmp_path, "net.savedmodel/saved_model.pb") / "net.savedmodel", None)
    assert (source.name, model_file(ModelConfig("net"), source.versions[1], None)) == (
        "net",
        tmp_path / "net.savedmodel",
    )


@pytest.mark.parametrize(
    ("paths", "says"),
    [
        (["m/readme.md"], "holds no model: expected one of model.onnx.*found readme.md"),
        (["m/"], "found nothing"),
        (["n"], "does not exist"),
    ],
)
def test_a_path_without_a_model_is_refused_with_the_way_out(tmp_path: Path, paths: list[str], says: str) -> None:
    with pytest.raises(LoadFailed, match=says):
        plain_source(put(tmp_path, *paths) / "m", None)


@pytest.mark.parametrize(
    ("paths", "several"),
    [
        (["m/a/1/model.onnx", "m/b/config.pbtxt"], True),
        (["m/a/config.pbtxt"], True),
        (["m/a/config.pbtxt", "m/client.py"], True),
        (["m/a/config.pbtxt", "m/model.py"], False),
        (["m/config.pbtxt", "m/1/model.onnx"], False),
        (["m/1/model.onnx"], False),
        (["m/model.onnx", "m/a/1/model.onnx"], False),
        (["m/readme.md"], False),
        (["m"], False),
    ],
)
def test_a_path_that_holds_models_in_directories_of_their_own_is_a_repository(
    tmp_path: Path, paths: list[str], several: bool
) -> None:
    assert is_repository(put(tmp_path, *paths) / "m") is several


def test_a_source_brings_its_configuration_or_none(tmp_path: Path) -> None:
    put(tmp_path, "a/1/", "b/1/")
    (tmp_path / "a/config.pbtxt").write_text('name: "a" max_batch_size: 3')
    first, second = scan(tmp_path)
    config = check_source(first)
    assert config is not None
    assert config.max_batch_size == 3
    assert check_source(second) is None
    override = config_from_json({"max_batch_size": 5}, "override")
    given = check_source(first, override)
    assert given is not None
    assert given.max_batch_size == 5


def test_a_configuration_without_a_name_gets_that_of_the_model(tmp_path: Path) -> None:
    put(tmp_path, "a/1/")
    (tmp_path / "a/config.pbtxt").write_text('backend: "onnxruntime"')
    source = scan(tmp_path)[0]
    config = check_source(source)
    assert config is not None
    assert (config.name, config.raw["name"]) == ("a", "a")
    with pytest.raises(LoadFailed, match=r"^a: no model file in"):
        model_file(config, source.versions[1])


def test_a_source_that_cannot_be_served_says_why(tmp_path: Path) -> None:
    put(tmp_path, "a/1/", "b/", "c/1/", "d/1/")
    (tmp_path / "a/config.pbtxt").write_text('name: "other"')
    (tmp_path / "c/config.pbtxt").write_text("max_batch_size: -1")
    (tmp_path / "d/config.pbtxt").write_bytes(b"name: '\xff'")
    wrong_name, no_version, bad_config, not_text = scan(tmp_path)
    for source, says in (
        (wrong_name, f"{tmp_path}/a/config.pbtxt: name = 'other', must be 'a' like the directory"),
        (no_version, f"{tmp_path}/b: no version to serve"),
        (bad_config, f"{tmp_path}/c/config.pbtxt:1:17: max_batch_size = -1"),
        (not_text, f"{tmp_path}/d/config.pbtxt is not UTF-8"),
    ):
        with pytest.raises(LoadFailed) as failure:
            check_source(source)
        assert str(failure.value).startswith(says)


@pytest.mark.parametrize(
    ("config", "files", "chosen"),
    [
        (ModelConfig("m", backend="onnxruntime"), ["model.onnx", "b.onnx"], "model.onnx"),
        (ModelConfig("m", platform="onnxruntime_onnx"), ["net.onnx", "notes.txt"], "net.onnx"),
        (ModelConfig("m", backend="pytorch"), ["model.pt2", "model.safetensors"], "model.pt2"),
        (
            ModelConfig("m", platform="tensorflow_savedmodel", backend="tensorflow"),
            ["model.savedmodel/"],
            "model.savedmodel",
        ),
        (ModelConfig("m", backend="python"), ["model.py", "tools.py"], "model.py"),
        (ModelConfig("m", default_model_filename="deep/net.bin"), ["deep/net.bin", "model.onnx"], "deep/net.bin"),
        (ModelConfig("m", platform="ensemble"), [], ""),
        (ModelConfig("m"), ["model.pt", "x.onnx"], "model.pt"),
        (ModelConfig("m"), ["x.onnx", ".hidden.onnx"], "x.onnx"),
    ],
)
def test_the_model_file_is_chosen_by_name_or_for_want_of_another(
    tmp_path: Path, config: ModelConfig, files: list[str], chosen: str
) -> None:
    put(tmp_path, "1/", *(f"1/{name}" for name in files))
    assert model_file(config, tmp_path / "1", None) == tmp_path / "1" / chosen


def test_a_named_function_is_that_of_the_code_and_not_of_the_file_beside_it(tmp_path: Path) -> None:
    put(tmp_path, "model.joblib")
    (tmp_path / "model.py").write_text("def double(x): pass")
    assert model_file(ModelConfig("m"), tmp_path).name == "model.joblib"
    assert model_file(ModelConfig("m", parameters={"class": "double"}), tmp_path).name == "model.py"


def test_a_named_class_is_served_from_the_module_that_defines_it(tmp_path: Path) -> None:
    config = ModelConfig("m", parameters={"class": "Scorer"})
    put(tmp_path, "cellar.joblib", "feats.py")
    (tmp_path / "scorer.py").write_text("class Scorer: pass")
    assert model_file(config, tmp_path).name == "scorer.py"
    (tmp_path / "second.py").write_text("class Scorer: pass")
    with pytest.raises(LoadFailed, match=r"Scorer is defined in scorer\.py and second\.py of "):
        model_file(config, tmp_path)
    with pytest.raises(LoadFailed, match="Other is defined in no module of "):
        model_file(ModelConfig("m", parameters={"class": "Other"}), tmp_path)


BY_CAPABILITY = ModelConfig("m", platform="tensorrt_plan", cc_model_filenames={"6.1": "a.plan", "7.0": "b.plan"})


def test_the_model_file_is_chosen_by_the_gpus_compute_capability(tmp_path: Path) -> None:
    put(tmp_path, "a.plan", "b.plan", "any.plan")
    assert model_file(BY_CAPABILITY, tmp_path, "7.0") == tmp_path / "b.plan"
    fallback = ModelConfig("m", default_model_filename="any.plan", cc_model_filenames={"6.1": "a.plan"})
    assert model_file(fallback, tmp_path, "9.0") == tmp_path / "any.plan"
    assert model_file(fallback, tmp_path, None) == tmp_path / "any.plan"
    with pytest.raises(LoadFailed, match=r"6\.1, 7\.0, but this GPU has compute capability 9\.0"):
        model_file(BY_CAPABILITY, tmp_path, "9.0")
    with pytest.raises(LoadFailed, match="there is no GPU here"):
        model_file(BY_CAPABILITY, tmp_path, None)


@pytest.mark.parametrize(
    ("config", "files", "says"),
    [
        (ModelConfig("m", backend="onnxruntime"), ["notes.txt"], "expected model.onnx, found notes.txt"),
        (ModelConfig("m", backend="onnxruntime"), ["a.onnx", "b.onnx"], "found a.onnx, b.onnx"),
        (ModelConfig("m", backend="onnxruntime"), [], "found nothing"),
        (ModelConfig("m", default_model_filename="x"), ["y"], "default_model_filename = 'x' is not in .*which has y"),
        (ModelConfig("m", default_model_filename="../x"), ["y"], "inside the version's directory"),
        (ModelConfig("m", backend="onnxruntim"), ["model.onnx"], "did you mean onnxruntime"),
    ],
)
def test_a_missing_model_file_says_what_was_expected(
    tmp_path: Path, config: ModelConfig, files: list[str], says: str
) -> None:
    with pytest.raises(LoadFailed, match=says):
        model_file(config, put(tmp_path, *files), None)


def test_a_broken_link_is_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").symlink_to("gone")
    with pytest.raises(LoadFailed, match=r"found model\.onnx \(a broken link\)"):
        model_file(ModelConfig("m", backend="onnxruntime"), tmp_path, None)


@pytest.mark.parametrize(
    ("policy", "chosen"),
    [
        (VersionPolicy(), (10,)),
        (VersionPolicy("latest", 2), (10, 3)),
        (VersionPolicy("all"), (10, 3, 0)),
        (VersionPolicy("specific", versions=(0, 3, 7)), (3, 0)),
    ],
)
def test_a_policy_chooses_versions_newest_first(policy: VersionPolicy, chosen: tuple[int, ...]) -> None:
    assert choose_versions(policy, [3, 10, 0]) == chosen
    assert choose_versions(policy, []) == ()


def settings(folder: Path, **fields: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model-settings.json").write_text(json.dumps(fields))
    return folder


def test_a_folder_of_mlserver_is_one_version_under_the_name_of_its_settings(tmp_path: Path) -> None:
    runtime = "mlserver_sklearn.SKLearnModel"
    put(settings(tmp_path / "a", name="iris", implementation=runtime, parameters={"uri": "./b.joblib"}), "b.joblib")
    assert is_repository(tmp_path)
    (source,) = scan(tmp_path)
    assert (source.name, source.versions) == ("iris", {1: tmp_path / "a"})
    config = check_source(source)
    assert config is not None
    assert (config.backend, model_file(config, tmp_path / "a")) == ("sklearn", tmp_path / "a/b.joblib")
    assert plain_source(tmp_path / "a").name == "iris"
    assert plain_source(tmp_path / "a", "other").name == "other"


def test_a_model_directory_may_be_served_by_another_name_than_its_configuration_has(tmp_path: Path) -> None:
    put(tmp_path, "my_model/1/model.onnx")
    (tmp_path / "my_model/config.pbtxt").write_text('name: "my_model" backend: "onnxruntime"')
    config = check_source(plain_source(tmp_path / "my_model", "my-model"))
    assert config is not None
    assert config.name == "my-model"


def test_settings_of_mlserver_without_a_uri_mean_the_usual_file(tmp_path: Path) -> None:
    put(settings(tmp_path, name="m", implementation="mlserver_lightgbm.LightGBMModel"), "model.bst")
    config = check_source(plain_source(tmp_path))
    assert config is not None
    assert model_file(config, tmp_path) == tmp_path / "model.bst"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"implementation": "mine.Runtime"}, r"implementation = 'mine\.Runtime', must be a runtime of MLServer"),
        (
            {"implementation": "mlserver_sklearn.SKLearnModel", "parameters": {"uri": "s3://b/m"}},
            "must be a path below",
        ),
        ({"implementation": "mlserver_sklearn.SKLearnModel", "parameters": {"uri": "../m"}}, "must be a path below"),
    ],
)
def test_settings_of_mlserver_that_cannot_be_served_name_the_field(
    tmp_path: Path, fields: dict[str, object], message: str
) -> None:
    put(settings(tmp_path, name="m", **fields), "model.joblib")
    with pytest.raises(LoadFailed, match=message):
        check_source(plain_source(tmp_path))
