"""Which task is served, and what is refused while a model is loaded."""

import hashlib
import json
from pathlib import Path

import pytest
from tests.doc_pages import page_section
from tests.predictor.backends.huggingface.conftest import answers, load_folder, request
from tests.predictor.backends.huggingface.tiny_tasks import write_bert

from pilotlight_predictor.backends.base import LoadSpec
from pilotlight_predictor.backends.huggingface import backend
from pilotlight_predictor.backends.huggingface.task import TASKS, choose_task, read_settings
from pilotlight_predictor.backends.text import backend as text_backend
from pilotlight_predictor.core.backend_table import backend_for_folder
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.repository.model_config import ModelConfig


def config(folder: Path, *architectures: str) -> Path:
    (folder / "config.json").write_text(json.dumps({"architectures": architectures}))
    return folder


@pytest.mark.parametrize(
    ("architecture", "task"),
    [
        ("DistilBertForSequenceClassification", "text-classification"),
        ("BertForTokenClassification", "token-classification"),
        ("RobertaForMaskedLM", "fill-mask"),
        ("DebertaV2ForQuestionAnswering", "question-answering"),
        ("ViTForImageClassification", "image-classification"),
        ("Wav2Vec2ForCTC", "automatic-speech-recognition"),
        ("WhisperForConditionalGeneration", "automatic-speech-recognition"),
        ("T5ForConditionalGeneration", "text2text-generation"),
        ("MarianMTModel", "text2text-generation"),
        ("MPNetModel", "feature-extraction"),
    ],
)
def test_the_architecture_tells_the_task(tmp_path: Path, architecture: str, task: str) -> None:
    assert choose_task("m", config(tmp_path, architecture), "").name == task
    found = backend_for_folder(tmp_path)
    assert found is not None
    assert found.names == ("huggingface",)


@pytest.mark.parametrize("name", ["sequence_classification", "SENTIMENT-ANALYSIS", "text-classification"])
def test_a_task_has_the_names_of_kserve_and_of_pipelines(tmp_path: Path, name: str) -> None:
    assert choose_task("m", config(tmp_path, "BertForSequenceClassification"), name).name == "text-classification"
    assert choose_task("m", tmp_path, "text_embedding").name == "feature-extraction"


@pytest.mark.parametrize(
    ("architectures", "task", "message"),
    [
        (
            ["BertModel"],
            "fill-mask",
            r"parameters task = 'fill-mask', but config.json of .* \['BertModel'\], for feature",
        ),
        (["BertModel"], "dance", "parameters task = 'dance', must be one of text-classification, "),
        (
            ["GitForPreTraining"],
            "",
            r"has architectures = \['GitForPreTraining'\], which belong to none of the tasks text-classification",
        ),
        ([], "", r"has architectures = \[\], which belong to none of the tasks"),
    ],
)
def test_a_task_without_its_weights_is_refused_by_the_field(
    tmp_path: Path, architectures: list[str], task: str, message: str
) -> None:
    with pytest.raises(LoadFailed, match=message):
        choose_task("m", config(tmp_path, *architectures), task)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("top_k", "0", r"m: parameters top_k = '0': Expected `int` >= 1"),
        ("MAX_LENGTH", "long", r"parameters max_length = 'long': Expected"),
        ("pooling", "best", r"parameters pooling = 'best': Invalid enum value"),
        ("normalize", "perhaps", r"parameters normalize = 'perhaps': Expected"),
    ],
)
def test_a_parameter_that_cannot_be_is_refused_by_its_name(name: str, value: str, message: str) -> None:
    with pytest.raises(LoadFailed, match=message):
        read_settings("m", {name: value, "unrelated": "x"})


@pytest.mark.parametrize(
    ("architecture", "served_by"),
    [("LlamaForCausalLM", "text"), ("GPT2LMHeadModel", "text"), ("BertForMaskedLM", "huggingface")],
)
def test_text_generation_and_other_tasks_find_each_others_backend(
    tmp_path: Path, architecture: str, served_by: str
) -> None:
    spec = LoadSpec(ModelConfig("m"), 1, config(tmp_path, architecture), tmp_path)
    assert backend.alternative_backend(spec) == text_backend.alternative_backend(spec) == served_by


@pytest.mark.parametrize("file", ["model.py", "model.onnx"])
def test_a_folder_with_code_or_onnx_is_another_backends(tmp_path: Path, file: str) -> None:
    (config(tmp_path, "BertModel") / file).touch()
    assert backend_for_folder(tmp_path) is None


def test_each_task_is_on_the_page() -> None:
    page = page_section("docs/reference/backends.md", "Hugging Face models")
    for task in TASKS:
        assert f"`{task.name}`" in page
        assert all(f"{ending}`" in page for ending in task.architectures)


class TestWeights:
    """Files of weights; each test has a folder of its own."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        pytest.importorskip("transformers")
        return write_bert(tmp_path / "bert", "ForSequenceClassification")

    def test_a_head_without_weights_is_refused(self, folder: Path) -> None:
        document = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(document | {"architectures": ["BertForTokenClassification"]}))
        from safetensors.torch import load_file, save_file

        tensors = {n: t for n, t in load_file(folder / "model.safetensors").items() if not n.startswith("classifier")}
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        with pytest.raises(
            LoadFailed, match=r"the weights lack classifier\.bias, classifier\.weight, which BertForToken"
        ):
            load_folder(folder)

    def test_a_state_dict_of_tensors_is_read(self, folder: Path) -> None:
        expected = answers(load_folder(folder), request(text=["good dog"]))
        self._replace_by_pickle(folder, {})
        assert answers(load_folder(folder), request(text=["good dog"])) == expected

    def test_a_pickle_of_more_than_tensors_is_read_only_if_pinned(self, folder: Path) -> None:
        path = self._replace_by_pickle(folder, {"bert.extra": Path("/")})
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        with pytest.raises(LoadFailed, match=f"--trust-pickle pytorch_model.bin={digest}"):
            load_folder(folder)
        with pytest.raises(LoadFailed, match=r"pytorch_model\.bin has changed since it was pinned"):
            load_folder(folder, {"pytorch_model.bin": "0" * 64})
        path.rename(folder / "pytorch_model-00001-of-00002.bin")
        convert = r"AutoModelForSequenceClassification\.from_pretrained\(FOLDER\)\.save_pretrained\(FOLDER\)"
        with pytest.raises(LoadFailed, match=rf"^pytorch_model-00001-of-00002\.bin is a pickle, .*{convert}"):
            load_folder(folder)

    def _replace_by_pickle(self, folder: Path, more: dict[str, object]) -> Path:
        import torch
        from safetensors.torch import load_file

        path = folder / "pytorch_model.bin"
        torch.save({**load_file(folder / "model.safetensors"), **more}, path)
        (folder / "model.safetensors").unlink()
        return path

    def test_a_folder_without_weights_says_so(self, folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        with pytest.raises(LoadFailed, match=r"model\.safetensors"):
            load_folder(folder)

    def test_a_folder_without_a_tokenizer_says_so(self, folder: Path) -> None:
        for file in folder.glob("tokenizer*"):
            file.unlink()
        with pytest.raises(
            LoadFailed, match=r"^there is no tokenizer\.json in bert; save it there by tokenizer\.save_pretrained"
        ):
            load_folder(folder)
