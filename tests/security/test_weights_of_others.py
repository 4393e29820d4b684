"""A model of data alone reads no files of others: those that it names are of its own folder."""

import json
from pathlib import Path

import pytest

from pilotlight_predictor.backends.transformers_library import check_paths
from pilotlight_predictor.errors import LoadFailed

pytestmark = pytest.mark.security
INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize("name", ["/srv/other/model.safetensors", "../other/model.safetensors", "a/../../b", 5])
def test_an_index_that_leads_out_of_the_folder_is_refused(name: object, tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "one.safetensors"}}))
    check_paths(tmp_path)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "one.safetensors", "b": name}}))
    with pytest.raises(LoadFailed, match=INDEX):
        check_paths(tmp_path)


@pytest.mark.parametrize("argument", ["vocab", "init_inputs", "gguf_file"])
def test_a_configuration_that_names_a_file_of_the_machine_is_refused(argument: str, tmp_path: Path) -> None:
    """BertTokenizer reads `vocab` as a path, and the lines of that file were tokens of fill-mask's responses."""
    secret, model = tmp_path / "token", tmp_path / "model"
    secret.write_text("s3cr3t")
    model.mkdir()
    config = {"tokenizer_class": "BertTokenizer", "name_or_path": str(secret), "model_input_names": ["a"], "x": ""}
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    check_paths(model)
    for name in (str(secret), "../token", "x/../../token"):
        (model / "tokenizer_config.json").write_text(json.dumps({**config, argument: [name, {"deep": 1}]}))
        with pytest.raises(LoadFailed, match=r"tokenizer_config\.json of model names .*token, which is outside"):
            check_paths(model)


def test_modules_of_another_model_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text("{}")
    (tmp_path / "model").mkdir()
    for name in (str(tmp_path / "other"), "../other", "other"):  # from the folder, or the working directory
        (tmp_path / "model" / "modules.json").write_text(json.dumps([{"type": "x.Pooling", "path": name}]))
        monkeypatch.chdir(tmp_path)
        with pytest.raises(LoadFailed, match=r"modules\.json of model names"):
            check_paths(Path("model"))
