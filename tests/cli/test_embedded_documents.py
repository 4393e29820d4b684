"""Manifests on a real platform: several services, refusals, two deploys at once."""

import json
import threading
from pathlib import Path

import pytest
from tests.cli.conftest import DOCUMENT, FLOWER, Call

from platformctl import main

pytestmark = pytest.mark.usefixtures("at_home")


def test_a_canary_of_deployments_is_split_by_percent_and_by_hand(call: Call, folder: Path) -> None:
    raw = DOCUMENT.replace("name: iris", "name: raw").replace(
        "{autoscaling.knative.dev/window: 60s}", "{serving.kserve.io/deploymentMode: Standard}"
    )
    (folder / "raw.yaml").write_text(raw)
    (folder / "raw-new.yaml").write_text(
        raw.replace("protocolVersion: v2", "protocolVersion: v2\n      env: [{name: A, value: b}]")
    )

    def parts() -> list[int]:
        return sorted(each["percent"] for each in json.loads(call("status", "raw", "-o", "json").out)["revisions"])

    assert call("deploy", "-f", str(folder / "raw.yaml")).code == 0
    assert call("canary", "start", "-f", str(folder / "raw-new.yaml"), "--percent", "30").code == 0
    assert parts() == [30, 70]
    stable = json.loads(call("status", "raw", "-o", "json").out)["revisions"]
    (old,) = [each["name"] for each in stable if each["percent"] == 70]
    assert call("traffic", "raw", f"{old}=90,latest=10").code == 0
    assert parts() == [10, 90]
    assert call("traffic", "raw", "--reset").code == 0
    assert parts() == [30, 70]
    assert call("canary", "promote", "raw").code == 0
    assert call("infer", "raw", "--data", FLOWER).code == 0
    assert call("delete", "raw").code == 0


def test_all_services_that_cannot_run_here_are_told_and_nothing_is_done(call: Call, folder: Path) -> None:
    secret = "    model:\n      env: [{name: KEY, valueFrom: {secretKeyRef: {name: nowhere, key: key}}}]\n"
    wanting = DOCUMENT.replace("    model:\n", secret)
    several = [wanting.replace("name: iris", f"name: {n}") for n in "ab"]
    (folder / "wanting.yaml").write_text("---".join([DOCUMENT.replace("name: iris", "name: mine"), *several]))
    done = call("deploy", "-f", str(folder / "wanting.yaml"))
    assert (done.code, done.out) == (1, "")
    assert "2 of 3 services cannot be deployed; nothing was done" in done.err
    assert "\n  a: " in done.err
    assert "\n  b: " in done.err
    assert call("status", "mine").code == 3


def test_an_image_that_cannot_run_here_is_refused_at_its_line(call: Call, folder: Path) -> None:
    container = "    containers: [{name: kserve-container, image: 'example.com/theirs:1'}]\n"
    file = folder / "foreign.yaml"
    file.write_text(DOCUMENT.partition("    model:")[0] + container)
    done = call("deploy", "-f", str(file))
    assert (done.code, done.out) == (2, "")
    line = file.read_text().splitlines().index(container.rstrip()) + 1
    assert f"foreign.yaml:{line}:" in done.err
    assert (
        "error PL373: spec.predictor.containers: local does not support it: only the Pilotlight predictor and"
        in done.err
    )


def test_several_services_in_one_deploy(call: Call, folder: Path) -> None:
    many = [
        DOCUMENT.replace("name: iris", f"name: iris-{n}").replace("minReplicas: 1", "minReplicas: 0") for n in (1, 2)
    ]
    (folder / "many.yaml").write_text("---".join(many))
    done = call("deploy", "-f", str(folder / "many.yaml"))
    assert done.code == 0, done.err
    assert [url.rpartition("/")[2] for url in done.out.split()] == ["iris-1", "iris-2"]
    refused = call("delete", "iris-1", "nobody")
    assert (refused.code, refused.out) == (3, "")
    assert "no service is called default/nobody; nothing was deleted" in refused.err
    assert call("status", "iris-1").code == 0
    gone = call("delete", "-f", str(folder / "many.yaml"))
    assert gone.out == "default/iris-1\ndefault/iris-2\n"
    assert call("status", "iris-1").code == 3
    assert call("delete", "iris-1").code == 3
    assert call("delete", "iris-1", "--ignore-not-found").code == 0
    assert call("delete").code == 2


def test_two_deploys_of_one_name_at_once_both_end_well(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files, codes = ("iris.yaml", "new.yaml"), dict[str, int]()

    def deploy(file: str) -> None:
        codes[file] = main.run(["deploy", "-f", str(folder / file), "--no-wait"])

    threads = [threading.Thread(target=deploy, args=(file,)) for file in files]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert codes == dict.fromkeys(files, 0), capsys.readouterr().err
