"""Manifests over HTTP: validated with located problems, compared, deployed, and bounded."""

from typing import Any

import pytest
from tests.embedded import IRIS, serverless
from tests.platform.api.conftest import Served
from tests.platform.console.test_routes import Visitor

from pilotlight.console.manifest_routes import MAX_BYTES
from pilotlight.release.plan_and_render import Sources, read
from pilotlight.spec.problems import InvalidDocument, problem_rows

KEY = ("default", "iris")


@pytest.fixture
def visitor(api: Served) -> Visitor:
    made = Visitor(api.port)
    assert made.enter() == 200
    return made


def send(visitor: Visitor, verb: str, text: str, service: str = "") -> tuple[int, Any]:
    return visitor.ask("POST", f"/console/api/manifests/{verb}", {"text": text, "service": service})


def deploy(visitor: Visitor, text: str = "", service: str = "") -> dict[str, Any]:
    status, lines = send(visitor, "deploy", text or serverless(), service)
    assert status == 200
    return dict(lines[-1])


def test_problems_have_the_lines_and_sentences_of_platformctl_validate(visitor: Visitor, tmp_path: Any) -> None:
    text = serverless().replace("maxReplicas: 3", "maxReplica: 3").replace("minReplicas: 0", "minReplicas: zero")
    (tmp_path / "service.yaml").write_text(text)
    with pytest.raises(InvalidDocument) as raised:
        read(Sources([str(tmp_path / "service.yaml")]))
    wanted = [{**row, "file": "manifest"} for row in problem_rows(raised.value.problems)]
    status, found = send(visitor, "validate", text)
    assert (status, found["valid"], found["problems"]) == (200, False, wanted)
    assert {row["line"] for row in wanted} == {11, 12}


def test_a_valid_manifest_names_what_it_would_create(visitor: Visitor) -> None:
    found = send(visitor, "validate", serverless())[1]
    assert found["valid"]
    assert found["services"] == [
        {"namespace": "default", "name": "iris", "mode": "serverless", "objects": 5, "exists": False}
    ]


@pytest.mark.parametrize(
    ("text", "code", "part"),
    [
        ("a: [", "PL100", "not valid YAML"),
        ("", "PL112", "no InferenceService"),
        (serverless(uri="./model.onnx"), "PL341", "is relative"),
        (serverless(uri="file:///nowhere/model.onnx"), "PL341", "there is no /nowhere/model.onnx"),
        (serverless() + "      example: /etc/passwd\n", "PL112", "cannot be read"),
    ],
)
def test_what_the_browser_cannot_mean_is_a_problem(visitor: Visitor, text: str, code: str, part: str) -> None:
    found = send(visitor, "validate", text)[1]
    assert not found["valid"]
    assert any(row["code"].startswith(code) and part in row["message"] for row in found["problems"]), found
    assert "root:" not in str(found)


def test_a_deploy_pins_its_model_and_reports_its_steps(api: Served, visitor: Visitor) -> None:
    status, lines = send(visitor, "deploy", serverless())
    assert status == 200
    assert [line["step"] for line in lines[:-1]] == ["Reading", "Validated", "Applied"]
    assert lines[-1] == {"applied": [{"namespace": "default", "name": "iris", "generation": 1}]}
    (release,) = api.engine.kept[KEY]
    assert "sha256:" in str(release.manifests)
    assert list(api.engine.home.models.glob("*/content/model.onnx"))


def test_an_invalid_manifest_is_not_deployed(api: Served, visitor: Visitor) -> None:
    last = deploy(visitor, serverless().replace("onnx}", "nonsense}"))
    assert last["problems"]
    assert not api.engine.kept


def test_the_editor_gets_the_manifest_as_it_was_written(visitor: Visitor) -> None:
    deploy(visitor)
    status, found = visitor.ask("GET", "/console/api/v1/namespaces/default/services/iris/manifest")
    assert status == 200
    assert f"storageUri: {IRIS.as_uri()}" in found["text"]
    assert "pilotlight" not in found["text"].split("spec:")[0]  # neither pins nor capabilities
    assert found["bounds"] == {"minReplicas": 0, "maxReplicas": 3}
    assert send(visitor, "compare", found["text"], "default/iris")[1]["objects"] == []


def test_a_comparison_shows_the_lines_of_the_manifest_and_the_objects(visitor: Visitor) -> None:
    deploy(visitor)
    found = send(visitor, "compare", serverless().replace("maxReplicas: 3", "maxReplicas: 5"), "default/iris")[1]
    assert "-    maxReplicas: 3" in found["manifest"]
    assert "+    maxReplicas: 5" in found["manifest"]
    assert {"change": "changed", "kind": "Service", "name": "iris-predictor"}.items() <= found["objects"][0].items()
    assert found["services"][0]["exists"]


def test_a_comparison_names_changed_files_of_a_model(visitor: Visitor, tmp_path: Any) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(IRIS.read_bytes())
    text = serverless(uri=model.as_uri())
    deploy(visitor, text)
    model.write_bytes(IRIS.read_bytes() + b"\0")
    assert "model.onnx" in send(visitor, "compare", text)[1]["models"][0]
    assert len(list(tmp_path.glob("home/models/*/content"))) == 1  # nothing is stored by a comparison


def test_the_editor_of_one_service_deploys_no_other(api: Served, visitor: Visitor) -> None:
    deploy(visitor)
    status, found = send(visitor, "validate", serverless("other"), "default/iris")
    assert status == 400
    assert found["error"] == "the manifest is of default/other, must be of default/iris"
    assert "error" in deploy(visitor, serverless("other"), "default/iris")
    assert set(api.engine.kept) == {KEY}


def test_a_secret_that_was_deployed_with_a_service_stays_and_is_not_shown(api: Served, visitor: Visitor) -> None:
    secret = "---\napiVersion: v1\nkind: Secret\nmetadata: {name: key}\nstringData: {password: hunter2}\n"
    deploy(visitor, serverless() + secret)
    text = visitor.ask("GET", "/console/api/v1/namespaces/default/services/iris/manifest")[1]["text"]
    assert "hunter2" not in text
    assert "hunter2" not in str(send(visitor, "compare", text, "default/iris"))
    deploy(visitor, text.replace("maxReplicas: 3", "maxReplicas: 4"), "default/iris")
    newest = api.engine.kept[KEY][0]
    assert "hunter2" in str(newest.manifests)
    assert "maxReplicas: 4" in newest.document


def test_two_services_are_checked_before_either_is_deployed(api: Served, visitor: Visitor) -> None:
    api.engine.kept[("default", "second")] = []  # it is at generation 0, and the manifest has one error
    last = deploy(visitor, serverless() + "---" + serverless("second").replace("onnx}", "nonsense}"))
    assert last["problems"]
    assert KEY not in api.engine.kept
    applied = deploy(visitor, serverless() + "---" + serverless("third"))["applied"]
    assert [row["name"] for row in applied] == ["iris", "third"]


@pytest.mark.parametrize("verb", ["validate", "compare", "deploy"])
def test_a_body_is_read_up_to_its_limit(visitor: Visitor, verb: str) -> None:
    assert send(visitor, verb, "x" * MAX_BYTES)[0] == 413


def test_a_manifest_that_expands_without_end_is_refused_at_once(visitor: Visitor) -> None:
    levels = "".join(f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9) if i else 'x'}]\n" for i in range(9))
    found = send(visitor, "validate", levels)[1]
    assert "aliases stand for more" in found["problems"][0]["message"]


def test_a_read_only_session_neither_validates_nor_deploys(api: Served) -> None:
    reader = Visitor(api.port)
    reader.enter(api.target.console(read_only=True).ticket)
    assert send(reader, "validate", serverless())[0] == 403
    assert send(reader, "deploy", serverless())[0] == 403
    assert not api.engine.kept
