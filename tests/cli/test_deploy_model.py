"""deploy MODEL: what a file, folder or URI is, what becomes of it, and words that could mean two things."""

import hashlib
import io
import json
import pickle
import re
import shlex
import shutil
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import joblib
import numpy as np
import pytest
import skops.io
import torch
import yaml
from safetensors.torch import save_file
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier
from tests.cli.conftest import Call
from tests.embedded import IRIS, Platform
from tests.object_stores import Bucket, moto, s3_bucket
from tests.onnx_models import write_identity
from tests.predictor.storage.conftest import Hub, WebServer, web

from pilotlight.errors import UsageError
from pilotlight.release.model_check import check_code, untrusted_files
from platformctl.commands.service.deploy import USES
from platformctl.services import scaffold
from platformctl.services.model_argument import describe, kind_of

__all__ = ["web"]  # a fixture
SERVICE = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: iris}
spec: {predictor: {model: {modelFormat: {name: onnx}, storageUri: ./model.onnx}}}
"""
FLOWER = "[5.1, 3.5, 1.4, 0.2]"
CLASS = """
INPUTS = {"x": ("FP64", [-1])}

class Doubler:
    def predict(self, x):
        return {"y": 2 * x}

try:
    from triples import triple
except ImportError:
    triple = Doubler
"""
TALK = {
    "config.pbtxt": """
backend: "python"
input [{name: "text_input" data_type: TYPE_STRING dims: [1]}]
output [{name: "text_output" data_type: TYPE_STRING dims: [1]}]
model_transaction_policy {decoupled: true}
""",
    "1/model.py": """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()
            answer = pb_utils.InferenceResponse([pb_utils.Tensor("text_output", text)])
            request.get_response_sender().send(answer, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
""",
}


FIXED = "has a fixed batch dimension of 2: requests of other sizes are refused; export it with a dynamic one"


@pytest.fixture
def folder(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a model of several kinds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PILOTLIGHT_HOME", str(tmp_path / "home"))
    for name in ("flowers", "no", "1"):
        (tmp_path / f"{name}.onnx").write_bytes(IRIS.read_bytes())
    fixed = write_identity(tmp_path / "repository", "m", "FP32", (2, 4))
    shutil.copy(fixed / "1/model.onnx", tmp_path / "two.onnx")
    (tmp_path / "wine.pkl").write_bytes(pickle.dumps({"any": "object"}))
    (tmp_path / "code.py").write_text(CLASS)
    (tmp_path / "trees.txt").write_text("tree\nversion=v4\nnum_class=3\n")
    (tmp_path / "chat").mkdir()
    (tmp_path / "chat" / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    (tmp_path / "chat" / "model.safetensors").touch()
    (tmp_path / "chat" / "tokenizer.json").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("word", "phrase", "service"),
    [
        ("flowers.onnx", "ONNX model", "flowers"),
        ("./flowers.onnx", "ONNX model", "flowers"),
        ("trees.txt", "LightGBM model (text)", "trees"),
        ("./chat", "LlamaForCausalLM (Hugging Face)", "chat"),
        ("code.py:Doubler", "Python model, class Doubler", "doubler"),
        ("code.py:triple", "Python model, function triple", "triple"),
        ("hf://org/Some-Model", "Hugging Face model", "some-model"),
        ("no.onnx", "ONNX model", "no"),
        ("1.onnx", "ONNX model", "model-1"),
        ("two.onnx", f"ONNX model\nnote: two.onnx {FIXED}", "two"),
        ("https://models.invalid/net.pt2", "exported PyTorch program", "net"),
    ],
)
def test_a_model_is_named_for_what_it_is_and_planned(
    word: str, phrase: str, service: str, call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    done = call("deploy", word, "--dry-run", "-o", "json")
    assert done.code == 0, done.err
    assert done.err.startswith(f"{word}: {phrase}")
    assert [each["name"] for each in json.loads(done.out)["services"]] == [service]
    if word == "two.onnx":
        (folder / "two.yaml").write_text(SERVICE.replace("model.onnx", word))
        assert f"note: two.onnx {FIXED}" in call("validate", "-f", "two.yaml").err


def test_the_options_of_a_model_reach_its_document_which_deploys_again(call: Call, folder: Path) -> None:
    (folder / "documents").mkdir()
    options = ("--name", "lilies", "--min-replicas", "2", "--save", "documents/lilies.yaml")
    done = call("deploy", "flowers.onnx", *options, "--dry-run")
    assert done.code == 0, done.err
    written = yaml.safe_load((folder / "documents/lilies.yaml").read_text())
    assert written["metadata"] == {"name": "lilies"}
    assert written["spec"]["predictor"]["model"]["storageUri"] == "../flowers.onnx"
    assert done.out == "default/lilies lilies-predictor-" + done.out[-9:]
    again = call("deploy", "documents/lilies.yaml", "--set", "spec.predictor.minReplicas=2", "--dry-run")
    assert again.out == done.out
    refused = call("deploy", "flowers.onnx", "--save", "documents/lilies.yaml", "--dry-run")
    assert refused.code == 2
    assert "documents/lilies.yaml exists" in refused.err


def test_a_path_with_spaces_is_quoted_in_the_commands_that_are_printed(call: Call, folder: Path) -> None:
    assert call("deploy", "flowers.onnx", "--save", "my service.yaml", "--dry-run").code == 0
    written = (folder / "my service.yaml").read_text()
    assert "#   platformctl explain -f 'my service.yaml' " in written
    assert "#   platformctl render -f 'my service.yaml' " in written
    assert "platformctl explain -f 'my service.yaml'\n" in call("explain", "my service.yaml").err
    made = call("init", "flowers.onnx", "--to", "my other.yaml")
    assert "next: platformctl deploy -f 'my other.yaml'; what was decided" in made.err
    (folder / "my models").mkdir()
    for name in ("a.onnx", "b.onnx"):
        shutil.copy(folder / "flowers.onnx", folder / "my models" / name)
    assert "platformctl deploy './my models/a.onnx'\n" in call("deploy", "./my models", "--dry-run").err


def test_a_pickle_is_refused_until_it_is_trusted_and_pinned_then(call: Call, folder: Path) -> None:
    refused = call("deploy", "wine.pkl", "--dry-run")
    assert (refused.code, refused.out) == (2, "")
    assert "wine.pkl is a pickle, which runs code of its author" in refused.err
    assert "platformctl deploy wine.pkl --dry-run --trust-pickle; else" in refused.err
    formatted = call("deploy", "wine.pkl", "-o", "name")
    assert "platformctl deploy wine.pkl --trust-pickle; else" in formatted.err
    named = call("deploy", "wine.pkl", "--name", "red wine", "--set", "a=1", "--set", "b=2", "--no-wait")
    line = "platformctl deploy wine.pkl --set a=1 --set b=2 --name 'red wine' --no-wait --trust-pickle; else"
    assert line in named.err, named.err
    canary = call("canary", "start", "wine", "wine.pkl")
    assert (canary.code, canary.out) == (2, "")
    assert "platformctl canary start wine wine.pkl --trust-pickle" in canary.err
    assert call("deploy", "wine.pkl", "--trust-pickle", "--save", "wine.yaml", "--dry-run").code == 0
    (variable,) = yaml.safe_load((folder / "wine.yaml").read_text())["spec"]["predictor"]["model"]["env"]
    digest = hashlib.sha256((folder / "wine.pkl").read_bytes()).hexdigest()
    assert variable == {"name": "INFERENCE_TRUST_PICKLE", "value": f"wine.pkl={digest}"}
    pasted = call("deploy", "wine.pkl", "--trust-pickle", variable["value"], "--dry-run")  # as the predictor writes it
    assert pasted.code == 2
    assert "--trust-pickle takes no value here" in pasted.err
    document = yaml.safe_load((folder / "wine.yaml").read_text())
    document["spec"]["predictor"]["model"].pop("env")
    (folder / "wine.yaml").write_text(yaml.safe_dump(document))
    pasted = call("deploy", "-f", "wine.yaml", "--trust-pickle", variable["value"])
    option, setting = shlex.split(pasted.err.partition("for a manifest: ")[2])
    rendered = call("render", "-f", "wine.yaml", option, setting)
    assert variable["value"] in rendered.out
    refused = call("deploy", "-f", "wine.yaml", "--dry-run")  # where it would fail only at its start
    assert (refused.code, refused.out) == (2, "")
    assert "error: wine.yaml:" in refused.err
    assert ": wine.pkl is a pickle, which runs code of its author when it is loaded\n" in refused.err
    assert f"the same command with {option} {shlex.quote(setting)}; else save it in another format" in refused.err
    assert call("validate", "-f", "wine.yaml").err == refused.err
    assert call("validate", "-f", "wine.yaml", option, setting).code == 0
    for target in ((), ("--target", "cluster", "--set", "spec.predictor.model.runtime=pilotlight")):
        there = ("-f", "wine.yaml", "--set", "spec.predictor.model.storageUri=s3://models/wine.pkl", *target)
        assert "wine.pkl is a pickle, which runs code of its author" in call("validate", *there).err
        assert call("validate", *there, option, setting).code == 0
    assert call("deploy", "-f", "wine.yaml", option, setting, "--dry-run").code == 0
    added = call("deploy", "-f", "wine.yaml", "--set", "spec.predictor.model.env=[{name: A, value: b}]", "--dry-run")
    assert "--set 'spec.predictor.model.env[1]={name: INFERENCE_TRUST_PICKLE, value: " in added.err
    (folder / "wine.pkl").write_bytes(pickle.dumps({"another": "object"}))
    changed = call("deploy", "-f", "wine.yaml", option, setting, "--dry-run")
    assert changed.code == 2
    (new,) = re.findall(r"value: \"wine\.pkl=(\w{64})", changed.err)
    assert f"wine.pkl has changed since it was pinned: its SHA-256 was {digest} and is {new}\n  if you" in changed.err
    assert "if you trust the new file: the same command with --set '" in changed.err
    elsewhere = call("deploy", "s3://models/wine.pkl", "--trust-pickle", "--dry-run")
    assert elsewhere.code == 2
    assert "is not on this machine" in elsewhere.err


def test_skops_is_refused_only_for_types_that_are_not_known_to_be_safe(call: Call, folder: Path) -> None:
    skops.io.dump(DecisionTreeClassifier().fit([[0.0], [1.0]], [0, 1]), folder / "tree.skops")
    assert call("deploy", "tree.skops", "--dry-run").code == 0
    skops.io.dump({"a": SimpleNamespace(b=1)}, folder / "odd.skops")
    assert call("deploy", "odd.skops", "--trust-pickle", "--save", "odd.yaml", "--dry-run").code == 0
    document = yaml.safe_load((folder / "odd.yaml").read_text())
    assert document["spec"]["predictor"]["model"].pop("env")[0]["value"].startswith("odd.skops=")
    (folder / "odd.yaml").write_text(yaml.safe_dump(document))
    (folder / "saved" / "data").mkdir(parents=True)
    (folder / "saved" / "MLmodel").write_text("flavors: {sklearn: {pickled_model: data/odd.skops}}")
    shutil.copy(folder / "odd.skops", folder / "saved" / "data" / "odd.skops")
    command = "--dry-run --trust-pickle"
    for words, fix in ((["odd.skops"], command), (["./saved"], command), (["-f", "odd.yaml"], "with --set 'spec")):
        done = call("deploy", *words, "--dry-run")
        assert (done.code, done.out) == (2, "")
        assert "odd.skops holds types that are not known to be safe (types.SimpleNamespace): loading" in done.err
        assert fix in done.err
        assert "else save it in another format, such as ONNX\n" in done.err


def test_the_name_of_a_pickle_cannot_pin_it(folder: Path) -> None:
    (folder / "forged").mkdir()
    name = "x}]\n      env: [{name: INFERENCE_TRUST_PICKLE, value: forged}]\n#.pkl"
    (folder / "forged" / name).write_bytes(pickle.dumps({"any": "object"}))
    model = replace(describe("./forged"), ours=True)
    assert model.pickle == name
    document = yaml.safe_load(scaffold.document(model, scaffold.Answers(), "serverless", "it varies", "-"))
    assert "env" not in document["spec"]["predictor"]["model"]


def test_a_long_file_without_a_document_is_told_apart_at_once(folder: Path) -> None:
    (folder / "empty.json").write_text("\n" * 65536)
    before = time.process_time()
    assert kind_of("./empty.json") == "model"
    assert time.process_time() - before < 5


def test_a_python_model_without_anything_to_serve_is_refused_with_the_line_that_names_it(
    call: Call, folder: Path
) -> None:
    (folder / "wines").mkdir()
    (folder / "wines" / "model.py").write_text("class Wine:\n    def score(self, x): return x")
    done = call("deploy", "./wines", "--dry-run")
    assert (done.code, done.out) == (2, "")
    assert "./wines/model.py defines neither a function predict nor a class with a method predict" in done.err
    assert "platformctl deploy ./wines:Wine --name wines" in done.err
    (folder / "wines" / "m.joblib").write_bytes(pickle.dumps({}))  # which Wine loads
    named = call("deploy", "./wines:Wine", "--name", "wines", "--dry-run")  # with the files beside it
    assert (named.code, named.err.splitlines()[0]) == (0, "./wines:Wine: Python model, class Wine"), named.err
    partial = "import functools\npredict = functools.partial(print)"
    for code in ("from wine import *", "class Wine(Base): pass", "def predict(x): return x", partial):
        (folder / "wines" / "model.py").write_text(f"{code}\ndef helper(): pass")
        assert describe("./wines").name == "wines"


def test_a_language_model_without_a_tokenizer_is_refused_before_a_start(call: Call, folder: Path) -> None:
    (folder / "chat" / "tokenizer.json").unlink()
    done = call("deploy", "./chat", "--dry-run")
    assert (done.code, done.out) == (2, "")
    fix = "save it there by tokenizer.save_pretrained(FOLDER)"
    assert f"error: ./chat has no tokenizer.json\n  {fix}\n" in done.err
    (folder / "chat.yaml").write_text(SERVICE.replace("./model.onnx", "./chat").replace("onnx", "huggingface"))
    done = call("deploy", "-f", "chat.yaml", "--dry-run")
    assert (done.code, done.out) == (2, "")
    assert f": chat has no tokenizer.json\n  {fix}\n" in done.err


def test_pickled_weights_of_a_language_model_are_refused_before_a_start(call: Call, folder: Path) -> None:
    for weights in (folder / "chat").glob("*.safetensors"):
        weights.unlink()
    (folder / "chat" / "pytorch_model.bin").write_bytes(b"pickle")
    done = call("deploy", "./chat", "--dry-run")
    assert (done.code, done.out) == (2, "")
    fix = "transformers.LlamaForCausalLM.from_pretrained(FOLDER).save_pretrained(FOLDER)"
    assert "pytorch_model.bin is a pickle, which is not read here" in done.err
    assert fix in done.err


def test_a_torch_module_is_refused_as_a_python_model_before_a_start(call: Call, folder: Path) -> None:
    (folder / "net.py").write_text("from torch import nn\nclass Net(nn.Module):\n    def forward(self, x): return x\n")
    done = call("deploy", "net.py:Net", "--dry-run")
    assert (done.code, done.out) == (2, "")
    assert "Net is a torch.nn.Module, not a model in Python\n  put its weights beside it as model.pt" in done.err
    (folder / "net.py").write_text("from torch import nn\nclass Net(nn.Module):\n    def predict(self, x): return x\n")
    assert call("deploy", "net.py:Net", "--dry-run").code == 0


@pytest.mark.parametrize(
    ("code", "env", "sentence"),
    [
        ("import numpy\ndef predict(x):\nreturn x", "", "model.py:3 is not valid Python: expected an indented block"),
        ("class Wine:\n    def score(self, x): return x", "", "defines neither a function predict nor a class with"),
        (
            CLASS,
            "env: [{name: INFERENCE_MODEL_PARAMETER, value: class=My_Wine}]",
            "has no class My_Wine; it has Doubler",
        ),
    ],
)
def test_code_that_cannot_be_served_is_refused_before_a_document_is_applied(
    code: str, env: str, sentence: str, call: Call, folder: Path
) -> None:
    (folder / "wines").mkdir()
    (folder / "wines" / "model.py").write_text(code)
    model = f"{{modelFormat: {{name: python}}, storageUri: ./wines, {env}}}"
    (folder / "wines.yaml").write_text(SERVICE.replace(SERVICE[SERVICE.index("{modelFormat") : -3], model))
    done = call("deploy", "-f", "wines.yaml", "--dry-run")
    assert (done.code, done.out) == (2, "")
    assert f"{folder}/wines/model.py" in done.err
    assert sentence in done.err


def test_a_class_of_a_folder_is_found_in_the_module_that_defines_it(call: Call, folder: Path) -> None:
    (folder / "proj").mkdir()
    (folder / "proj" / "scorer.py").write_text("class Scorer:\n    def predict(self, x): return x")
    (folder / "proj" / "feats.py").write_text("from scorer import Scorer")
    (folder / "proj" / "cellar.joblib").write_bytes(pickle.dumps({}))
    done = call("deploy", "./proj:Scorer", "--dry-run")
    assert (done.code, done.err.splitlines()[0]) == (0, "./proj:Scorer: Python model, class Scorer"), done.err
    assert 'value: "class=Scorer"' in call("init", "./proj:Scorer", "--to", "-").out
    missing = call("deploy", "./proj:Score", "--dry-run")
    assert (missing.code, missing.out) == (2, "")
    assert "./proj has no module that defines Score; did you mean Scorer?" in missing.err
    (folder / "proj" / "second.py").write_text("class Scorer: ...")
    twice = call("deploy", "./proj:Scorer", "--dry-run")
    assert (twice.code, twice.out) == (2, "")
    assert "./proj: Scorer is defined in scorer.py and second.py" in twice.err
    assert "platformctl deploy ./proj/scorer.py:Scorer" in twice.err


def test_code_beside_weights_is_named_and_can_be_chosen_by_format(call: Call, folder: Path) -> None:
    (folder / "proj").mkdir()
    (folder / "proj" / "scorer.py").write_text("class Scorer:\n    def predict(self, x): return x")
    (folder / "proj" / "cellar.joblib").write_bytes(pickle.dumps({}))
    weights = call("deploy", "./proj", "--trust-pickle", "--dry-run")
    assert weights.code == 0, weights.err
    note = "scorer.py defines class Scorer with predict, which is not served; to serve it: platformctl deploy "
    assert f"{note}./proj:Scorer\n" in weights.err
    chosen = call("deploy", "./proj", "--format", "python", "--dry-run")
    assert (chosen.code, chosen.err.splitlines()[0]) == (0, "./proj: Python model, class Scorer"), chosen.err
    assert note not in chosen.err
    (folder / "proj" / "second.py").write_text("def predict(x): return x")
    several = call("deploy", "./proj", "--format", "python", "--dry-run")
    assert (several.code, several.out) == (2, "")
    assert "./proj can serve Scorer in scorer.py, predict in second.py" in several.err
    for file in ("scorer.py", "second.py"):
        (folder / "proj" / file).write_text("import json")
    none = call("deploy", "./proj", "--format", "python", "--dry-run")
    assert "./proj has no module with a function predict or a class with a method predict" in none.err


def test_an_empty_folder_is_said_to_be_empty(call: Call, folder: Path) -> None:
    (folder / "nothing").mkdir()
    done = call("deploy", "./nothing", "--dry-run")
    assert (done.code, done.out) == (2, "")
    assert "./nothing is an empty folder" in done.err


def test_a_whole_module_of_torch_is_a_pickle_too(call: Call, folder: Path) -> None:
    with zipfile.ZipFile(folder / "net.pt", "w") as archive:
        archive.writestr("net/data.pkl", b"\x80\x02c__main__\nNet\nctorch.nn.modules.linear\nLinear\n")
    refused = call("deploy", "net.pt", "--dry-run")
    assert (refused.code, refused.out) == (2, "")
    assert "net.pt is a pickle, which runs code of its author" in refused.err
    assert "else save it as a state dict, TorchScript or .pt2\n" in refused.err
    assert call("deploy", "net.pt", "--trust-pickle", "--dry-run").code == 0


def test_what_a_checkpoint_holds_beside_tensors_is_named(call: Call, folder: Path) -> None:
    (folder / "saved").mkdir()
    (folder / "saved" / "model.py").write_text("import torch\nclass Net(torch.nn.Linear): ...\n")
    for name, options in (("old.pt", {}), ("net.pt", {"options": SimpleNamespace(rate=0.1), "kind": np.float64(1)})):
        torch.save({"weights": torch.nn.Linear(1, 1).state_dict(), **options}, folder / "saved" / name)
        done = call("deploy", f"saved/{name}", "--dry-run")
        assert done.code == (2 if options else 0), done.err
    types = "numpy._core.multiarray.scalar, numpy.dtype, types.SimpleNamespace"
    assert f"net.pt holds types that are not known to be safe ({types}): loading them may run any code\n" in done.err
    assert "else save it as a state dict, TorchScript or .pt2\n" in done.err


def test_weights_without_the_class_of_their_module_are_refused_before_a_start(call: Call, folder: Path) -> None:
    module = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(module.parameters())
    weights = folder / "weights"
    weights.mkdir()
    torch.save(module.state_dict(), weights / "net.pt")
    torch.save({"model_state_dict": module.state_dict(), "optimizer": optimizer.state_dict()}, weights / "net.ckpt")
    torch.save(module.state_dict(), weights / "old.pth", _use_new_zipfile_serialization=False)
    save_file(module.state_dict(), weights / "net.safetensors")
    for name in ("net.pt", "net.ckpt", "old.pth", "net.safetensors"):
        done = call("deploy", f"weights/{name}", "--dry-run")
        assert (done.code, done.out) == (2, "")
        assert f"weights/{name} holds only weights, without the class of their module\n  put a model.py " in done.err
        (folder / "net.yaml").write_text(SERVICE.replace("./model.onnx", f"weights/{name}").replace("onnx", "pytorch"))
        done = call("deploy", "-f", "net.yaml", "--dry-run")
        assert (done.code, done.out) == (2, "")
        assert f": {name} holds only weights, without the class of their module\n" in done.err
    (weights / "net.py").write_text("import torch\nclass Net(torch.nn.Module): ...\n")
    assert (
        "net.py defines Net: if it is that class, write `from net import Net` into a model.py beside it\n"
        in call("deploy", "weights/net.pt", "--dry-run").err
    )
    (weights / "net.py").rename(weights / "model.py")
    done = call("deploy", "weights/net.pt", "--dry-run")
    assert done.code == 0, done.err


class Scale(torch.nn.Module):
    """Without a layer of torch, whose classes would be in its pickle."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = torch.nn.Parameter(torch.ones(1))


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("zipped", [True, False])
def test_a_module_without_layers_is_a_pickle_in_each_form_of_torch_save(
    zipped: bool, protocol: int, folder: Path
) -> None:
    torch.save(Scale(), folder / "scale.pt", pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
    assert describe("./scale.pt").pickle == "scale.pt"
    torch.save(Scale().state_dict(), folder / "model.pt", _use_new_zipfile_serialization=zipped)
    assert untrusted_files(folder / "model.pt") == []


@pytest.mark.parametrize("target", ["kubernetes", "lepton", "brev"])
def test_a_file_of_this_machine_is_refused_where_nothing_can_read_it(target: str, call: Call, folder: Path) -> None:
    done = call("deploy", "flowers.onnx", "--target", target, "--dry-run")
    assert done.code == 2
    assert f"flowers.onnx is a local path, which {target} cannot read" in done.err
    assert "s3://" in done.err


@pytest.mark.parametrize("model", ["./chat", "flowers.onnx"])
def test_docker_serves_a_file_of_this_machine_with_our_predictor(model: str, call: Call, folder: Path) -> None:
    done = call("deploy", model, "--target", "docker", "--dry-run")
    assert done.code == 0, done.err


def test_documents_need_no_flag(call: Call, folder: Path) -> None:
    (folder / "services").mkdir()
    (folder / "services" / "iris.yaml").write_text(SERVICE.replace("./", "../").replace("model.onnx", "flowers.onnx"))
    for word in ("services/iris.yaml", "./services"):
        done = call("deploy", word, "--dry-run", "-o", "json")
        assert done.code == 0, done.err
        assert [each["name"] for each in json.loads(done.out)["services"]] == ["iris"]


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["chat"], 2, "chat is a folder here: write ./chat for it, or NAMESPACE/chat for the service"),
        (["gone.yaml"], 2, "no such file or directory: gone.yaml\n"),
        (["flowers.onx"], 2, "no such file or directory: flowers.onx; did you mean flowers.onnx?"),
        (["./flower.onnx"], 2, "no such file or directory: ./flower.onnx; did you mean ./flowers.onnx?"),
        (["mixed/model.onx"], 2, "no such file or directory: mixed/model.onx; did you mean mixed/model.onnx?"),
        (["code.py:Double"], 2, "code.py has no class Double; did you mean Doubler?"),
        (["two.py:Other"], 2, "two.py has no class Other; it has First, second"),
        (["two.py:Second"], 2, "two.py has no class Second; did you mean second?"),
        (["broken.py:Model"], 2, "broken.py:1 is not valid Python: '(' was never closed"),
        (["cod.py:Doubler"], 2, "no such file or directory: cod.py; did you mean code.py?"),
        (["./mixed"], 2, "./mixed has a model (ONNX model) and a document (iris.yaml)"),
        (["flowers.onnx", "./chat"], 2, "a model is deployed alone"),
        (["chat/model.safetensors"], 2, "holds only the weights of a Hugging Face model, which its folder describes\n"),
        (["chat/model.safetensors"], 2, "  platformctl deploy ./chat\n"),
        (["pvc://models/thing"], 2, "pvc://models/thing is of no known format; name it with --format"),
        (["s3://models/thing"], 2, "its format cannot be detected: s3://models/thing: "),
        (["flowers.onnx", "--target", "k8s"], 2, "lepton, brev; did you mean kubernetes?"),
        (["flowers.onnx", "--format", "sklearn"], 2, "flowers.onnx has format onnx (ONNX model), not sklearn"),
        (["flowers.onnx", "--save", "-"], 2, "to print the document: platformctl init flowers.onnx --to -"),
        (["./notes.md", "--format", "onnx"], 2, "model of format onnx by its ending\n  rename it to notes.onnx"),
        (["./two"], 2, "./two has 2 models: a.onnx, b.onnx\n  name the file: platformctl deploy ./two/a.onnx\n"),
        (["./mixture"], 2, "./mixture has 2 models: a.onnx, b.onnx\n  name the file: platformctl deploy ./mixture/a"),
        (["./two", "--format", "onnx"], 2, "./two has 2 models: a.onnx, b.onnx\n  name the file: platformctl deploy"),
        (["./net.h5"], 2, "./net.h5 is a Keras model, whose format is not served\n  convert it to ONNX by tf2onnx"),
        (["./notes.md"], 2, "./notes.md is of no known format; name it with --format"),
        (["./work"], 2, "./work holds no model, but a Triton model repository: models\n  platformctl deploy ./work"),
        (["-f", "mixed/iris.yaml", "--name", "other"], 2, "--name is for a MODEL"),
        (["-f", "mixed/iris.yaml", "--min-replicas", "2"], 2, "--set spec.predictor.minReplicas=2"),
        (["iris", "--min-replicas", "2"], 2, "platformctl scale iris --min 2"),
        (["iris", "--trust-pickle"], 2, "--set 'spec.predictor.model.env=[{name: INFERENCE_TRUST_PICKLE, value:"),
        (["mixed/model.onnx", "--name", "1"], 2, "manifest of mixed/model.onnx:7:9: error PL104: metadata.name"),
    ],
)  # fmt: skip
def test_what_cannot_be_told_is_said_in_one_sentence(
    words: list[str], code: int, sentence: str, call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "notes.md").write_text("# Notes")
    (folder / "net.h5").write_text("")
    (folder / "two").mkdir()
    for name in "ab":
        (folder / "two" / f"{name}.onnx").write_bytes(IRIS.read_bytes())
    shutil.copytree(folder / "two", folder / "mixture")
    (folder / "work" / "models" / "net").mkdir(parents=True)
    (folder / "work" / "models" / "net" / "config.pbtxt").write_text("")
    (folder / "work" / "train.py").write_text("print(1)")
    (folder / "mixture" / "train.py").write_text("print(1)")
    (folder / "two.py").write_text("import pilotlight\nclass First: ...\n@pilotlight.model\ndef second(x): ...\n")
    (folder / "broken.py").write_text("print(")
    (folder / "mixed").mkdir()
    (folder / "mixed" / "iris.yaml").write_text(SERVICE)
    (folder / "mixed" / "model.onnx").write_bytes(IRIS.read_bytes())
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    done = call("deploy", *words, "--dry-run")
    assert (done.code, done.out) == (code, "")
    assert sentence in done.err


def test_without_arguments_or_with_a_missing_file_deploy_starts_nothing(call: Call, folder: Path) -> None:
    done = call("deploy")
    assert (done.code, done.out) == (2, "")
    lines = done.err.splitlines()
    assert lines[0] == "error: deploy needs a MODEL, a FILE or a NAME"
    assert [line.split("  ")[1] for line in lines[1:]] == [command for command, _ in USES]
    assert "no such file or directory: gone.yaml" in call("deploy", "-f", "gone.yaml").err
    assert not (folder / "home").exists()


def test_options_of_a_model_are_refused_by_a_canary_without_one(call: Call) -> None:
    done = call("canary", "start", "iris", "--trust-pickle")
    assert (done.code, done.out) == (2, "")
    assert "--trust-pickle is for a MODEL: platformctl canary start NAME ./model.onnx --trust-pickle" in done.err


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    with moto() as endpoint:
        bucket = s3_bucket(endpoint, "models")
        for name, value in bucket.env.items():
            monkeypatch.setenv(name, value)
        yield bucket


def test_a_folder_of_a_store_is_known_by_the_names_of_its_files(bucket: Bucket, folder: Path) -> None:
    folders = {
        "onnx": ["model.onnx"],
        "mlflow": ["MLmodel", "model.pkl", "requirements.txt"],
        "triton": ["net/config.pbtxt", "net/1/model.onnx", "client.py"],
        "huggingface": ["config.json", "model.safetensors", "tokenizer.json"],
        "two": ["model.onnx", "model.joblib"],
        "project": ["model.py", "net/config.pbtxt", "net/1/model.onnx"],
    }
    for name, files in folders.items():
        for file in files:
            bucket.put(f"{name}/{file}", b"1")
    for name in ("onnx", "mlflow", "triton", "huggingface"):
        assert describe(bucket.uri(name)).format == name
    for name in ("two", "project"):
        with pytest.raises(UsageError, match="is of no known format; name it with --format"):
            describe(bucket.uri(name))


@pytest.fixture
def hub(web: WebServer) -> Hub:
    return Hub(web)


@pytest.fixture
def platform(tmp_path: Path, web: WebServer, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    monkeypatch.setenv("HF_ENDPOINT", web.url(""))
    with Platform(tmp_path / "home") as running:
        yield running


def test_models_of_files_classes_hubs_and_stores_answer(
    platform: Platform, hub: Hub, bucket: Bucket, call: Call, folder: Path
) -> None:
    hub.publish("org/flowers", {"model.onnx": IRIS.read_bytes()})
    bucket.put("iris/model.onnx", IRIS.read_bytes())
    estimator = io.BytesIO()
    joblib.dump(LogisticRegression().fit([[0.0, 0, 0, 0], [5.1, 3.5, 1.4, 0.2]], [0, 7]), estimator)
    bucket.put("lilies.joblib", estimator.getvalue())
    pin = f"lilies.joblib={hashlib.sha256(estimator.getvalue()).hexdigest()}"
    trusted = f"spec.predictor.model.env=[{{name: INFERENCE_TRUST_PICKLE, value: '{pin}'}}]"
    (folder / "my models").mkdir()
    (folder / "flowers.onnx").rename(folder / "my models" / "flowers.onnx")
    cases = {
        "spaces": (["./my models/flowers.onnx"], "--data", FLOWER, None),
        "doubler": (["code.py:Doubler"], "--data", "[1.5, 2.5]", [3.0, 5.0]),
        "org": (["hf://org/flowers/model.onnx"], "--data", FLOWER, None),
        "stored": ([bucket.uri("iris")], "--data", FLOWER, None),
        "lilies": ([bucket.uri("lilies.joblib"), "--set", trusted], "--data", FLOWER, [7]),
    }
    for name, (words, option, data, expected) in cases.items():
        done = call("deploy", *words, "--name", name)
        assert done.code == 0, done.err
        answer = call("infer", name, option, data, "-o", "json")
        assert answer.code == 0, answer.err
        values = json.loads(answer.out)["outputs"][0]["data"]
        assert values == expected if expected else values[0] == pytest.approx(0.999207)
    for file, text in TALK.items():
        (folder / "talk" / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / "talk" / file).write_text(text)
    assert call("deploy", "./talk").code == 0
    answer = call("infer", "talk", "--text", "hello", "-o", "json")  # of a decoupled model, as text models are
    assert json.loads(answer.out)["text_output"] == "hello", answer.err
    for prompt in ('{"text_input": "hi", "max_tokens": 3}', '["hi"]'):
        answer = call("infer", "talk", "--data", prompt, "-o", "json")
        assert answer.code == 0, answer.err
        assert json.loads(answer.out)["text_output"] == "hi"
    refused = call("infer", "talk", "--text", "hello there", "--outputs", "text_output")
    assert (refused.code, refused.out) == (2, "")
    assert "talk generates text: --outputs is for models with one response of tensors" in refused.err
    assert "leave it out: platformctl infer talk --text 'hello there'\n" in refused.err
    assert call("infer", "talk", "--text", "hello", "--max-tokens", "5").out == "hello\n"
    refused = call("infer", "doubler", "--data", "[1.5]", "--max-tokens", "5")
    assert "doubler generates no text from this input: --max-tokens" in refused.err
    (folder / "chatter.py").write_text(CHATTER)
    assert call("deploy", "./chatter.py").code == 0
    answer = call("infer", "chatter", "--text", "hello")
    assert (answer.code, answer.out) == (0, "you said hello\n"), answer.err
    assert json.loads(call("infer", "chatter", "--text", "hi", "-o", "json").out)["choices"][0]["message"]["content"]
    (revision,) = json.loads(call("status", "talk", "-o", "json").out)["revisions"]
    assert not revision["error_percent"], "sent by generate: V2 would answer 501, which counts as an error"


HUNGRY = """
import time

class Hungry:
    def initialize(self, args):
        self.held = b"x" * (250 << 20)
        time.sleep(60)

    def predict(self, x):
        return x
"""


def test_a_start_beyond_the_memory_limit_shows_the_command_that_raises_it(
    platform: Platform, call: Call, folder: Path
) -> None:
    (folder / "hungry.py").write_text(HUNGRY)
    limit = "spec.predictor.model.resources.limits.memory"
    done = call("deploy", "hungry.py:Hungry", "--name", "big", "--set", f"{limit}=200Mi")
    assert done.code == 1, done.err
    assert re.search(r"(used \d+ MiB, limit 200 MiB|memory limit 200 MiB reached); raise resources\.limits", done.err)
    assert re.search(rf"\n  .*deploy hungry.py:Hungry .*--name big.* --set {limit}=1Gi; platformctl logs big", done.err)


CHATTER = """
import json

OUTPUTS = {"text_output": ("BYTES", [1])}

def predict(messages: str):
    said = json.loads(messages)[-1]["content"] if messages else "nothing, in the warm-up"
    return {"text_output": ["you said " + said]}
"""


RULED = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: ruled
  labels: {team: search}
  annotations:
    pilotlight.dev/auth-tokens-sha256: HASH
    pilotlight.dev/audit: "true"
    pilotlight.dev/model-names: roses
spec:
  predictor:
    minReplicas: 1
    model:
      modelFormat: {name: onnx}
      storageUri: ./no.onnx
      env: [{name: GREETING, value: hello}]
"""


def test_another_model_keeps_the_access_rules_and_settings_of_its_service(
    platform: Platform, call: Call, folder: Path
) -> None:
    manifest = RULED.replace("HASH", hashlib.sha256(b"secret").hexdigest())
    (folder / "ruled.yaml").write_text(manifest)
    assert call("deploy", "-f", "ruled.yaml").code == 0
    annotations = yaml.safe_load(manifest)["metadata"]["annotations"]

    def check(uri: str) -> None:
        key = ("default", "ruled")
        stored = yaml.safe_load(platform.target.releases(key)[0].document)
        assert stored["metadata"]["labels"] == {"team": "search"}
        assert annotations.items() <= stored["metadata"]["annotations"].items()
        assert stored["spec"]["predictor"]["minReplicas"] == 1
        assert stored["spec"]["predictor"]["model"]["env"][0] == {"name": "GREETING", "value": "hello"}
        assert Path(stored["spec"]["predictor"]["model"]["storageUri"]).name == uri
        body = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [5.1, 3.5, 1.4, 0.2]}]}
        assert platform.ask("/ruled/v2/models/ruled/infer", body).status == 401

    platform.wait_phase("Ready", name="ruled")
    check("no.onnx")
    canary = call("canary", "start", "ruled", "./flowers.onnx", "--percent", "20")
    assert canary.code == 0, canary.err
    assert "ruled keeps its annotations: pilotlight.dev/auth-tokens-sha256, pilotlight.dev/audit" in canary.err
    check("flowers.onnx")
    assert call("canary", "abort", "ruled").code == 0
    check("no.onnx")
    done = call("deploy", "./1.onnx", "--name", "ruled", "--save", "saved.yaml")
    assert done.code == 0, done.err
    check("1.onnx")
    saved = yaml.safe_load((folder / "saved.yaml").read_text())
    assert annotations.items() <= saved["metadata"]["annotations"].items()
    assert "unchanged" in call("deploy", "-f", "saved.yaml").err


def test_a_pickle_that_is_refused_at_its_start_is_trusted_in_the_form_of_the_command(
    platform: Platform, bucket: Bucket, call: Call, folder: Path
) -> None:
    (folder / "wines" / "1").mkdir(parents=True)
    (folder / "wines" / "config.pbtxt").write_text("")
    shutil.copy(folder / "wine.pkl", folder / "wines" / "1" / "model.pkl")
    content = (folder / "wine.pkl").read_bytes()
    bucket.put("stored/model.pkl", content)
    bucket.put("stored.pkl", content)
    pin = f"model.pkl={hashlib.sha256(content).hexdigest()}"
    assert call("deploy", "./wines", "--save", "wines.yaml", "--dry-run").code == 0
    option = f"""--set 'spec.predictor.model.env=[{{name: INFERENCE_TRUST_PICKLE, value: "{pin}"}}]'"""
    lines = f'write under model in its manifest:\n    env:\n    - name: INFERENCE_TRUST_PICKLE\n      value: "{pin}"\n'
    stored = [bucket.uri("stored"), "--set", "spec.predictor.model.runtime=pilotlight"]
    named = call("deploy", bucket.uri("stored.pkl"))  # its name shows that it is one
    assert (named.code, '{name: INFERENCE_TRUST_PICKLE, value: "stored.pkl=SHA256"}' in named.err) == (2, True)
    assert call("deploy", "flowers.onnx", "--name", "iris").code == 0
    for words, fix in (
        (["deploy", "./wines"], "the same command with --trust-pickle\n"),
        (["deploy", "-f", "wines.yaml"], lines),
        (["deploy", *stored], f"the same command with {option}\n"),
        (["canary", "start", "iris", "./wines", "--percent", "9"], "the same command with --trust-pickle\n"),
        (["canary", "start", "iris", "./wines", "--bake", "1s"], "the same command with --trust-pickle\n"),
    ):
        done = call(*words)
        assert done.code in (1, 5)
        assert f"if you trust its author, {fix}" in done.err, done.err


def test_a_manifest_whose_model_cannot_be_replaced_is_refused(platform: Platform, call: Call, folder: Path) -> None:
    model = "model: {modelFormat: {name: onnx}, storageUri: ./model.onnx}"
    custom = SERVICE.replace(model, "onnx: {storageUri: ./no.onnx}")
    (folder / "custom.yaml").write_text(custom)
    assert call("deploy", "-f", "custom.yaml").code == 0
    refused = call("deploy", "./flowers.onnx", "--name", "iris")
    assert refused.code == 2
    assert "deployed from a manifest without spec.predictor.model" in refused.err
    assert "platformctl deploy -f FILE" in refused.err


def test_the_saved_manifest_of_a_model_has_its_edits(call: Call, folder: Path) -> None:
    edit = 'metadata.annotations["pilotlight.dev/model-names"]=gpt-4o'
    done = call("deploy", "flowers.onnx", "--save", "flowers.yaml", "--min-replicas", "2", "--set", edit, "--dry-run")
    assert done.code == 0, done.err
    written = yaml.safe_load((folder / "flowers.yaml").read_text())
    assert written["metadata"]["annotations"] == {"pilotlight.dev/model-names": "gpt-4o"}
    assert written["spec"]["predictor"]["minReplicas"] == 2
    assert call("deploy", "flowers.yaml", "--dry-run").out == done.out


def test_a_class_of_a_version_folder_is_not_looked_for_in_the_scripts_above(folder: Path) -> None:
    (folder / "tri" / "1").mkdir(parents=True)
    (folder / "tri" / "1" / "model.py").write_text("class Scorer:\n    def predict(self, x): return x")
    (folder / "tri" / "client.py").write_text("import json")
    check_code("tri", "Scorer")
