"""The section "One file, four targets" of docs/how-to/targets.md: its file, its commands, and the answers.

`platformctl` is run as a program, in an environment with the variables that the file names.
"""

import json
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.embedded import IRIS
from tests.eventually import eventually
from tests.object_stores import Bucket, s3_bucket
from tests.serving import ROOT

Run = Callable[..., subprocess.CompletedProcess[str]]  # of the words after `platformctl`
FLOWER = "[5.1, 3.5, 1.4, 0.2]"
UNKNOWN = 3  # exit code: there is no such service


def blocks() -> tuple[str, list[list[str]]]:
    """The file, and the words of each command after `platformctl`."""
    page = (ROOT / "docs" / "how-to" / "targets.md").read_text()
    section = page.partition("## One file, four targets\n")[2].partition("\n## ")[0]
    (file,), (commands,) = (re.findall(rf"```{kind}\n(.*?)```", section, re.DOTALL) for kind in ("yaml", "text"))
    return file, [shlex.split(line)[1:] for line in commands.splitlines()]


def command(target: str, folder: Path) -> list[str]:
    """The page's command for a target, with its file in the folder."""
    file, commands = blocks()
    (folder / "iris.yaml").write_text(file)
    (words,) = [words for words in commands if words[words.index("--target") + 1] == target]
    return [str(folder / "iris.yaml") if word == "iris.yaml" else word for word in words]


def model_store(endpoint: str) -> Bucket:
    """The bucket that the file names, with the model; `env` is for the shell."""
    bucket = s3_bucket(endpoint, "models")
    bucket.put("iris/model.onnx", IRIS.read_bytes())
    return bucket


def deploy_ask_watch_scale_and_delete(run: Run, deploy: list[str], target: str) -> None:
    """What a person does with a service, the same on every target."""

    def do(*words: str) -> str:
        done = run(*words)
        assert done.returncode == 0, f"platformctl {' '.join(words)}:\n{done.stderr}"
        return done.stdout.strip()

    def status() -> Any:
        return json.loads(do("status", "iris", "--target", target, "-o", "json"))

    def ready() -> int:
        return sum(row["ready"] for row in status()["revisions"] if row["percent"])

    assert do(*deploy).startswith("http")
    reply = json.loads(do("infer", "iris", "--target", target, "--data", FLOWER, "-o", "json"))
    assert reply["outputs"][0]["shape"] == [1, 3]
    seen = status()
    (revision,) = seen["revisions"]
    assert (seen["phase"], revision["ready"], revision["percent"]) == ("Ready", 1, 100)
    assert revision["model_digest"].startswith("etags:"), "pinned by the credentials of the shell"
    assert "model.loaded" in do("logs", "iris", "--target", target)
    assert f"{seen['namespace']}/iris" in do("list", "--target", target, "-o", "name").splitlines()
    assert "(unchanged)" in run(*deploy).stderr
    do("scale", "iris", "--target", target, "--min", "2")
    eventually(lambda: ready() == 2, "two replicas", 180.0)
    do("delete", "iris", "--target", target)
    assert run("status", "iris", "--target", target).returncode == UNKNOWN
