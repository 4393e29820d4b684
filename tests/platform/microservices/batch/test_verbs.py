"""`platformctl microservice batch` and what `doctor` says of jobs, as a person types them."""

import json
import os
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from unittest.mock import patch

import pytest
from tests.object_stores import s3_bucket
from tests.platform.microservices.batch.conftest import Here, picture

from platformctl import main
from platformctl.commands.microservice.batch import parse_parameters


@dataclass(frozen=True)
class Typed:
    returncode: int
    stdout: str
    stderr: str


def typed(here: Here, *words: str) -> Typed:
    printed, noted = StringIO(), StringIO()
    with patch.dict(os.environ, here.environ, clear=True), redirect_stdout(printed), redirect_stderr(noted):
        code = main.run(words)
    return Typed(code, printed.getvalue(), noted.getvalue())


def folders(here: Here) -> list[str]:
    return ["--workspace", str(here.root / "workspace"), "--inputs", "in"]


def test_a_job_is_started_followed_listed_and_scored(here: Here, colours: Path) -> None:
    inputs = here.root / "workspace" / "in"
    (inputs / "a.png").write_bytes(picture("red"))
    (inputs / "b.png").write_bytes(picture("blue"))
    (here.root / "workspace" / "labels.json").write_text('{"a.png": "red", "b.png": "blue"}')
    words = [
        "--model-path",
        str(colours),
        "--workspace",
        str(here.root / "workspace"),
        "--inputs",
        "in",
        "--labels",
        "labels.json",
    ]
    done = typed(
        here, "microservice", "batch", "start", "classification", *words, "--parameter", "top_k=1", "--wait", "100",
        "-o", "json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["state"], told["done"], told["percent"], told["metrics"]["accuracy"]) == ("done", 2, 100.0, 1.0)
    assert (here.root / "workspace/results/results.jsonl").exists()
    shown = typed(here, "microservice", "batch", "status", told["job_id"])
    assert "2 of 2 (100 %)" in shown.stdout
    assert "accuracy  1.0000" in shown.stdout
    assert told["job_id"] in typed(here, "microservice", "batch", "list").stdout


def test_a_model_of_ones_own_network_in_a_bucket_is_scored_by_its_own_labels(
    here: Here, colours: Path, s3_server: str
) -> None:
    bucket = s3_bucket(s3_server, "own-network")
    for file in (each for each in colours.rglob("*") if each.is_file()):
        bucket.put(f"cls/{file.relative_to(colours)}", file.read_bytes())
    bucket.put("in/a.png", picture("red"))
    bucket.put("labels.csv", b"file,label\na.png,red\n")
    environ = {
        "WORKSPACE_ID": "testing", "WORKSPACE_SECRET": bucket.secret, "PILOTLIGHT_MEDIA_NETWORKS": "127.0.0.0/8",
        "PILOTLIGHT_MEDIA_ALLOW_HTTP": "true",
    }  # fmt: skip
    storage = ["--workspace", bucket.root, "--endpoint", s3_server, "--credential", "access_key=env:WORKSPACE_ID"]
    words = [*storage, "--credential", "secret_key=env:WORKSPACE_SECRET", "--inputs", "in", "--labels", "labels.csv"]
    there = Here(here.home, {**here.environ, **environ}, here.root)
    start = ("microservice", "batch", "start", "mycls", *words, "--model-path", bucket.uri("cls"), "--wait", "100")
    done = typed(there, *start, "-o", "json")
    assert done.returncode == 0, done.stderr + done.stdout
    assert json.loads(done.stdout)["metrics"]["accuracy"] == 1.0


def test_a_failed_job_ends_with_1_and_doctor_says_how_to_go_on(here: Here) -> None:
    words = [
        "--model-path",
        str(here.root / "none.onnx"),
        "--workspace",
        str(here.root / "workspace"),
        "--inputs",
        "in",
    ]
    done = typed(here, "microservice", "batch", "start", "tensors", *words, "--wait", "100", "-o", "json")
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    assert "there is no file in" in told["message"]
    checked = json.loads(typed(here, "doctor", "-o", "json").stdout)["checks"]
    found = next(each for each in checked if each["check"] == f"batch {told['job_id'][:8]}")
    assert found["fix"] == f"platformctl microservice batch resume {told['job_id']}"


def test_a_job_that_is_done_with_files_that_failed_says_so_and_ends_with_1(here: Here, colours: Path) -> None:
    (here.root / "workspace" / "in" / "a.png").write_bytes(picture("red"))
    (here.root / "workspace" / "in" / "bad.png").write_bytes(picture("red")[:40])
    start = ("microservice", "batch", "start", "classification", *folders(here), "--model-path", str(colours))
    done = typed(here, *start, "--wait", "100", "-o", "json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["state"], told["failed"]) == (1, "done", 1)
    assert told["message"] == "1 of 2 files failed; `error` in results/results.jsonl has the reason"
    assert typed(here, "microservice", "batch", "status", told["job_id"]).returncode == 1
    (here.root / "workspace" / "in" / "bad.png").unlink()
    good = typed(here, *start, "--wait", "100", "-o", "json")
    assert (good.returncode, json.loads(good.stdout)["message"]) == (0, "")


def test_a_workspace_or_folder_that_is_not_there_is_named_and_no_job_is_made(here: Here, colours: Path) -> None:
    start = ("microservice", "batch", "start", "classification", "--model-path", str(colours))
    space = str(here.root / "workspace")
    nowhere = typed(here, *start, "--workspace", f"{space}s", "--inputs", "in")
    assert nowhere.returncode == 2
    assert f"workspace = {space}s: no such folder" in nowhere.stderr
    missing = typed(here, *start, "--workspace", space, "--inputs", "im")
    assert missing.returncode == 2
    assert f"inputs = im: there is no such folder in the workspace {space}" in missing.stderr
    assert json.loads(typed(here, "microservice", "batch", "list", "-o", "json").stdout) == []


def test_a_new_job_does_not_pass_off_what_another_model_said(here: Here, colours: Path) -> None:
    (here.root / "workspace" / "in" / "a.png").write_bytes(picture("red"))
    start = ("microservice", "batch", "start", "classification", *folders(here), "--wait", "100", "-o", "json")
    first = typed(here, *start, "--model-path", str(colours))
    assert json.loads(first.stdout)["state"] == "done", first.stderr
    second = typed(here, *start, "--model-path", str(here.root / "none.onnx"))
    told = json.loads(second.stdout)
    assert (second.returncode, told["state"], told["done"]) == (1, "failed", 0)
    result = json.loads((here.root / "workspace/results/files/a.png.json").read_text())
    assert result["job"] == json.loads(first.stdout)["job_id"]


def test_what_is_wrong_is_told_in_one_sentence(here: Here, colours: Path) -> None:
    words = ["--model-path", str(colours), *folders(here)]
    start = ("microservice", "batch", "start", "classification", *words)
    wrong = typed(here, *start, "--parameter", "top_k=many")
    assert wrong.returncode == 2
    assert 'top_k = "many", must be a whole number from 1 to 1000' in wrong.stderr
    value = typed(here, *start, "--credential", "access_key=AKIA0123456789")
    assert value.returncode == 2
    assert "AKIA0123456789" not in value.stderr
    missing = typed(here, "microservice", "batch", "cancel", "nope")
    assert missing.returncode == 3
    assert "no batch job nope is known" in missing.stderr


def test_parameters_are_json_or_text() -> None:
    assert parse_parameters(("a=1", "b=0.5", "c=true", "d=two words", 'e="1"', "f=a=b")) == {
        "a": 1, "b": 0.5, "c": True, "d": "two words", "e": "1", "f": "a=b",
    }  # fmt: skip
    with pytest.raises(Exception, match="must be NAME=VALUE"):
        parse_parameters(("a",))
