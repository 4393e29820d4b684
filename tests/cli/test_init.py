"""init: whatever it writes is valid, says why, and never overwrites or waits for an answer that nobody gives."""

import io
import json
import os
import pickle
import pty
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from tests.cli.conftest import ROOT, Call

from pilotlight.plan.support.target_support import TARGETS
from pilotlight.plan.types import Capabilities
from pilotlight.release.plan_and_render import Sources, plan_all
from pilotlight.wire.model_formats import name_for
from platformctl.services.scaffold import Answers, Load, Model, document, recommend

MODEL = "examples/iris/model.onnx"
CLUSTER = ("--target", "kubernetes")
CASES = {
    "file": ([MODEL], "serverless"),
    "steady": ([MODEL, "--load", "steady"], "raw"),
    "latency": ([MODEL, "--no-cold-starts", "--latency", "0.25"], "raw"),
    "repository": (["examples/file_type/repository", "--gpus", "1"], "serverless"),
    "foreign": (["s3://models/x.joblib", "--load", "steady"], "raw"),
    "hub": (["hf://org/some-model", "--gpus", "1"], "serverless"),
    "hub-nodes": (["hf://org/some-model", "--gpus", "8", "--nodes", "2", *CLUSTER], "multi-node"),
    "known": (["llama-3-1-8b-instruct", "--gpus", "1", *CLUSTER], "serverless"),
    "known-steady": (["llama-3-1-8b-instruct", "--load", "steady", *CLUSTER], "raw"),
    "known-nodes": (["deepseek-r1", "--nodes", "2", "--gpus", "8", *CLUSTER], "multi-node"),
    "forced": ([MODEL, "--load", "steady", "--mode", "serverless"], "serverless"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_written_is_valid_in_the_mode_that_was_recommended(case: str, call: Call, tmp_path: Path) -> None:
    argv, mode = CASES[case]
    target = tmp_path / "service.yaml"
    done = call("init", *argv, "--to", str(target))
    assert done.code == 0, done.err
    assert done.out == f"{target}\n"
    assert f"next: platformctl deploy -f {target}" in done.err
    trusted = target.read_text().replace(
        "# env: [{name: INFERENCE_TRUST_PICKLE,", "env: [{name: INFERENCE_TRUST_PICKLE,"
    )
    target.write_text(trusted)  # as its comment says of a pickle
    judged = call("validate", "-f", str(target), "-o", "json", *(["--target", "cluster"] if CLUSTER[1] in argv else []))
    assert judged.code == 0, judged.out + judged.err
    assert [service["mode"] for service in json.loads(judged.out)["services"]] == [mode]


def test_a_pickle_of_this_machine_is_said_to_need_a_pin(call: Call, tmp_path: Path) -> None:
    model, file = tmp_path / "wine.pkl", tmp_path / "service.yaml"
    model.write_bytes(pickle.dumps({"any": "object"}))
    done = call("init", str(model), "--to", str(file))
    assert done.code == 0, done.err
    assert "wine.pkl is a pickle, which runs code of its author when it is loaded: deploy refuses it" in done.err
    assert "next: platformctl deploy" not in done.err
    pinned = call("init", str(model), "--to", str(file), "--trust-pickle", "--force")
    assert "next: platformctl deploy" in pinned.err
    assert "INFERENCE_TRUST_PICKLE" in file.read_text()


def test_strings_of_the_user_come_back_as_they_were(call: Call) -> None:
    written = yaml.safe_load(call("init", "s3://b/what-is:this#1?.onnx", "--name", "odd", "--to", "-").out)
    assert written["spec"]["predictor"]["model"]["storageUri"] == "s3://b/what-is:this#1?.onnx"


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1))
@example("y")
@example(".5")
@example("1e3")
@example("a: b")
@example("x #y")
@example("-")
def test_any_string_comes_back_through_yaml(text: str) -> None:
    whole = yaml.safe_load(document(Model(text, uri=text, format=text), Answers(), "serverless", "why", "service.yaml"))
    model = whole["spec"]["predictor"]["model"]
    assert (whole["metadata"]["name"], model["storageUri"], model["modelFormat"]["name"]) == (text, text, text)


@pytest.mark.parametrize(
    ("answers", "mode"),
    [
        (Answers(), "serverless"),
        (Answers(load="steady"), "raw"),
        (Answers(cold_starts=False), "raw"),
        (Answers(load="steady", cold_starts=False), "raw"),
        (Answers(nodes=2), "multi-node"),
        (Answers(nodes=2, cold_starts=False, load="steady"), "multi-node"),
    ],
)
def test_the_recommendation_follows_the_answers(answers: Answers, mode: str) -> None:
    assert recommend(answers)[0] == mode


def test_a_local_path_is_written_as_seen_from_the_document(call: Call, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"x" * 2**20)
    call("init", str(tmp_path / "model.onnx"), "--to", str(tmp_path / "service.yaml"))
    absolute = yaml.safe_load((tmp_path / "service.yaml").read_text())
    assert absolute["spec"]["predictor"]["model"]["storageUri"] == str(tmp_path / "model.onnx")
    relative = yaml.safe_load(call("init", MODEL, "--to", "-").out)
    assert relative["spec"]["predictor"]["model"]["storageUri"] == f"./{MODEL}"


def test_an_existing_file_is_overwritten_only_by_force(call: Call, tmp_path: Path) -> None:
    target = tmp_path / "service.yaml"
    target.write_text("mine")
    refused = call("init", MODEL, "--to", str(target))
    assert refused.code == 2
    assert "--force" in refused.err
    assert target.read_text() == "mine"
    assert call("init", MODEL, "--to", str(target), "--force").code == 0


@pytest.mark.parametrize(
    ("argv", "code", "sentence"),
    [
        ([], 2, "no MODEL is given"),
        (["lama-3-1-8b-instruct"], 3, "did you mean llama-3-1-8b-instruct?"),
        (["examples/iris/model.onx"], 2, "did you mean examples/iris/model.onnx?"),
        (["s3://models/thing.bin"], 2, "--format"),
        ([MODEL, "--nodes", "2"], 2, "no runtime serves onnx on several nodes"),
        ([MODEL, "--mode", "multi-node"], 2, "--nodes 2"),
        (["llama-3-1-8b-instruct", "--load", "steady", "--latency", "2"], 2, "kedaConfig.customPromQuery"),
    ],
)
def test_what_cannot_be_written_is_said(argv: list[str], code: int, sentence: str, call: Call, tmp_path: Path) -> None:
    done = call("init", *argv, "--to", str(tmp_path / "service.yaml"))
    assert (done.code, done.out) == (code, "")
    assert sentence in done.err
    assert not (tmp_path / "service.yaml").exists()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("uri", ["s3://models/wine.onnx", "s3://models/net.pt", "hf://org/chat", "s3://models/b.ubj"])
@pytest.mark.parametrize("load", get_args(Load))
def test_what_is_written_for_a_target_plans_there(target: str, uri: str, load: str, call: Call, tmp_path: Path) -> None:
    file = tmp_path / "service.yaml"
    done = call("init", uri, "--target", target, "--load", load, "--to", str(file))
    assert done.code == 0, done.err
    (plan,) = plan_all(Sources([str(file)]), Capabilities(target=target)).plans
    assert plan.name == name_for(uri)


@pytest.mark.parametrize(
    ("file", "runtime"), [("net.pt", "pilotlight"), ("net.pth", "pilotlight"), ("net.mar", "kserve-torchserve")]
)
def test_torch_files_of_a_cluster_are_served_by_what_reads_them(file: str, runtime: str, call: Call) -> None:
    written = call("init", f"s3://models/{file}", *CLUSTER, "--to", "-").out
    assert "platformctl explain -f FILE --target kubernetes " in written
    (plan,) = plan_all(Sources(("-",), stdin=io.StringIO(written)), Capabilities(target="kubernetes")).plans
    assert [each.value for each in plan.decisions if each.topic == "runtime"] == [runtime]


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (
            ["s3://models/x.pmml"],
            "kserve-pmmlserver serves format pmml, but local runs only the Pilotlight predictor image",
        ),
        (["deepseek-r1", "--nodes", "2", "--gpus", "8"], "local"),
        ([MODEL, "--target", "kubernetes"], "put it into a store first and give its URI: s3://"),
        (["s3://models/m.onnx", "--target", "slrm"], "'slrm' is not one of"),
    ],
)
def test_what_does_not_run_on_the_target_is_not_written(
    argv: list[str], sentence: str, call: Call, tmp_path: Path
) -> None:
    done = call("init", *argv, "--to", str(tmp_path / "service.yaml"))
    assert done.code == 2
    assert sentence in done.err
    assert not (tmp_path / "service.yaml").exists()


def test_memory_fits_the_libraries_of_the_format(call: Call, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("class Net(torch.nn.Module): ...")  # of the weights
    for name, limit in {"a.onnx": "512Mi", "b.ubj": "1024Mi", "c.safetensors": "2048Mi"}.items():
        (tmp_path / name).write_bytes(b"x")
        written = yaml.safe_load(call("init", str(tmp_path / name), "--to", "-").out)
        assert written["spec"]["predictor"]["model"]["resources"]["limits"]["memory"] == limit


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"model.py": "import numpy\n"}, "512Mi"),
        ({"model.py": "import sklearn.svm\n"}, "1024Mi"),
        ({"model.py": "def load():\n    from torch import nn\n"}, "2048Mi"),
        (
            {"model.py": "from net import Net\n", "net.py": "from . import parts\n", "parts.py": "import jax\n"},
            "2048Mi",
        ),
        ({"model.py": "import torch\n", "torch/__init__.py": "import numpy\n"}, "512Mi"),
        ({"model.py": "def predict(x): ...\n", "train.py": "import torch\n"}, "512Mi"),
        ({"config.pbtxt": "", "1/model.py": "import transformers\n"}, "2048Mi"),
        ({"config.pbtxt": "", "1/model.pt": "x"}, "2048Mi"),
        ({"config.pbtxt": "", "1/model.onnx": "x"}, "512Mi"),
    ],
)
def test_memory_fits_the_libraries_that_code_imports(
    files: dict[str, str], limit: str, call: Call, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / "net" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "net" / name).write_text(text + "def predict(x): ...\n")
    written = yaml.safe_load(call("init", str(tmp_path / "net"), "--to", "-").out)
    assert written["spec"]["predictor"]["model"]["resources"]["limits"]["memory"] == limit


def test_a_model_in_python_is_shown_where_its_example_goes(call: Call, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("def predict(x):\n    return {'y': x}\n")
    assert "# example: ./example.json" in call("init", str(tmp_path), "--load", "steady", "--to", "-").out
    assert "# example:" not in call("init", MODEL, "--load", "steady", "--to", "-").out


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("examples/iris/model.onnx", "iris"),
        ("s3://bucket/Face_Detector.v2.onnx", "face-detector-v2"),
        ("hf://org/Some-Model", "some-model"),
        ("hf://org/model", "org"),
        ("models/resnet/1/model.pt", "resnet"),
        ("models/resnet/3/model.pt", "resnet"),
        ("1.onnx", "model-1"),
        ("1e3.onnx", "model-1e3"),
        ("hf://org/7b-chat", "model-7b-chat"),
    ],
)
def test_a_service_is_named_after_its_model(uri: str, name: str) -> None:
    assert name_for(uri) == name


def test_a_terminal_is_asked_what_no_flag_says() -> None:
    """The questions in their order, answered: one node, steady, cold starts allowed, no GPU, half a second."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "platformctl", "init", MODEL, "--to", "-"]
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    os.close(theirs)
    os.write(ours, b"1\ny\ny\n0\n0.5\n")
    out, err = process.communicate(timeout=60)
    os.close(ours)
    assert process.returncode == 0, err
    assert yaml.safe_load(out)["metadata"]["annotations"]["pilotlight.dev/triggers"] == "latency=0.5"
    assert "Is the load steady" in err
