"""Files, directories, standard input, `--set` and variables: how documents arrive and are changed before reading."""

import io
import json
import time
from pathlib import Path

import pytest

from pilotlight.spec.load_documents import LoadedDocuments, load
from pilotlight.spec.problems import InvalidDocument

DOCUMENT = """\
apiVersion: ome.io/v1beta1
kind: InferenceService
metadata:
  name: {name}
spec:
  model:
    name: llama
  engine:
    minReplicas: 1
    runner:
      args: [a, b]
"""
RUNTIME = "apiVersion: serving.kserve.io/v1alpha1\nkind: ServingRuntime\nmetadata: {name: r}\nspec: {}\n"


def stdin(text: str, *sets: str) -> LoadedDocuments:
    return load(["-"], stdin=io.StringIO(text), sets=sets)


def edited(*sets: str) -> dict[str, object]:
    loaded = stdin(DOCUMENT.format(name="chat"), *sets)
    assert not loaded.problems.errors
    return dict(loaded.services[0].document["spec"]["engine"])


def problems(loaded: LoadedDocuments) -> list[str]:
    return [str(problem) for problem in loaded.problems.items]


def test_a_directory_gives_its_yaml_and_json_files_in_order_of_name(tmp_path: Path) -> None:
    (tmp_path / "b.yml").write_text(DOCUMENT.format(name="second"))
    (tmp_path / "a.yaml").write_text(DOCUMENT.format(name="first"))
    (tmp_path / "notes.txt").write_text("not: [read")
    document = {"apiVersion": "ome.io/v1beta1", "kind": "InferenceService", "metadata": {"name": "third"}}
    (tmp_path / "c.json").write_text(json.dumps(document | {"spec": {"model": {"name": "m"}}}, indent="\t"))
    loaded = load([str(tmp_path)])
    assert not loaded.problems.items
    assert [service.name for service in loaded.services] == ["first", "second", "third"]


def test_services_and_catalogue_documents_of_one_file_are_told_apart() -> None:
    loaded = stdin(DOCUMENT.format(name="a") + "---\n" + RUNTIME + "---\n" + DOCUMENT.format(name="b"))
    assert [service.name for service in loaded.services] == ["a", "b"]
    assert [node.text("kind") for node in loaded.catalogue_nodes] == ["ServingRuntime"]


def test_a_list_as_kubectl_prints_it_is_opened() -> None:
    document = DOCUMENT.format(name="chat").replace("\n", "\n  ").rstrip()
    loaded = stdin(f"apiVersion: v1\nkind: List\nitems:\n- {document}\n")
    assert not loaded.problems.items
    assert [service.name for service in loaded.services] == ["chat"]


def test_files_that_cannot_be_read_are_all_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe9")
    (tmp_path / "blank.yaml").write_text("# nothing\n---\n")
    (tmp_path / "main.joblib").write_bytes(b"\x80\x04\x95")
    names = ["missing.yaml", "empty", "latin.yaml", "main.joblib", "blank.yaml"]
    loaded = load([str(tmp_path / name) for name in names])
    assert [problem.code for problem in loaded.problems.errors] == ["PL112"] * 5
    messages = [problem.message for problem in loaded.problems.errors]
    assert messages == [
        "cannot be read: No such file or directory",
        "is a directory without .yaml, .yml, .json files",
        "cannot be read: it is not UTF-8 text",
        f"cannot be read: it is a model, not a document: platformctl deploy {tmp_path}/main.joblib",
        "has no manifest",
    ]


def test_two_services_of_one_name_are_refused() -> None:
    loaded = stdin(DOCUMENT.format(name="chat") + "---\n" + DOCUMENT.format(name="chat"))
    (problem,) = problems(loaded)
    assert problem.startswith(
        '<stdin>:16:9: error PL113: metadata.name: is "chat", the same as the service at <stdin>:4:9'
    )


def test_the_namespace_is_the_callers_unless_the_document_has_one() -> None:
    text = DOCUMENT.format(name="a") + "---\n" + DOCUMENT.format(name="a\n  namespace: own")
    loaded = load(["-"], stdin=io.StringIO(text), namespace="team")
    assert [service.namespace for service in loaded.services] == ["team", "own"]


@pytest.mark.parametrize("written", ["./model.onnx", "../models/m"])
def test_a_path_beside_the_document_is_found_from_anywhere(tmp_path: Path, written: str) -> None:
    head = "apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nmetadata: {name: iris}\n"
    file = tmp_path / "here" / "service.yaml"
    file.parent.mkdir()
    file.write_text(head + f"spec: {{predictor: {{onnx: {{storageUri: {written}}}}}}}\n")
    (service,) = load([str(file)]).services
    model = service.components["predictor"].model
    assert model is not None
    assert model.storage_uri == str((file.parent / written).resolve())


def test_set_changes_adds_and_removes() -> None:
    assert edited("spec.engine.minReplicas=0")["minReplicas"] == 0
    assert edited("spec.engine.runner.args[1]=c")["runner"] == {"args": ["a", "c"]}
    assert edited("spec.engine.runner.args[2]='3'")["runner"] == {"args": ["a", "b", "3"]}
    assert edited("spec.engine.runner.args[0]=null")["runner"] == {"args": ["b"]}
    assert edited("spec.engine.runner.env[0].name=A", "spec.engine.runner.env[0].value=@b=c")["runner"] == {
        "args": ["a", "b"],
        "env": [{"name": "A", "value": "@b=c"}],
    }
    assert "minReplicas" not in edited("spec.engine.minReplicas=null")
    assert edited(r"spec.engine.labels.example\.com/team=x")["labels"] == {"example.com/team": "x"}
    assert edited('spec.engine.annotations["a.b/c"]="1"')["annotations"] == {"a.b/c": "1"}
    assert edited("spec.engine.resources={limits: {cpu: 2}}")["resources"] == {"limits": {"cpu": "2"}}


def test_set_applies_to_every_service_and_to_no_catalogue_document() -> None:
    text = DOCUMENT.format(name="a") + "---\n" + RUNTIME + "---\n" + DOCUMENT.format(name="b")
    loaded = stdin(text, "spec.engine.minReplicas=3")
    assert [service.components["engine"].min_replicas for service in loaded.services] == [3, 3]
    assert loaded.catalogue_nodes[0].plain()["spec"] == {}


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        ("spec.engine.minReplica=0", "PL101: spec.engine.minReplica: unknown field of EngineSpec"),
        ("spec.engine.minReplicas=lots", 'PL102: spec.engine.minReplicas: is "lots", must be'),
        ("spec.engine.minReplicas", "PL108: must read path=value"),
        (".a=1", "PL108: must read path=value"),
        ("spec.engine.runner.args[9]=x", "PL108: spec.engine.runner.args[9]: [9] cannot be set: the list has 2 items"),
        ("spec.engine[0]=x", "PL108: spec.engine[0]: [0] cannot be set: its parent is not a list"),
        ("spec.engine.minReplicas.a=x", "PL108: spec.engine.minReplicas.a: a cannot be set: its parent is not a map"),
    ],
)
def test_a_slip_in_a_set_is_told_with_the_set_as_its_place(edit: str, problem: str) -> None:
    (found,) = problems(stdin(DOCUMENT.format(name="chat"), edit))
    assert found.startswith(f"--set {edit}: error {problem}")


def test_variables_fill_in_numbers_as_numbers() -> None:
    text = DOCUMENT.format(name="${NAME}").replace("minReplicas: 1", "minReplicas: ${MIN:-2}")
    loaded = load(["-"], stdin=io.StringIO(text), environ={"NAME": "chat"})
    assert not loaded.problems.items
    assert (loaded.services[0].name, loaded.services[0].components["engine"].min_replicas) == ("chat", 2)


def test_an_invalid_document_carries_every_error_and_no_warning() -> None:
    text = DOCUMENT.format(name="chat").replace("engine:", "predictor:").replace("runner", "runners")
    error = InvalidDocument(stdin(text).problems.errors)
    assert error.exit_code == 2
    assert [problem.code for problem in error.problems] == ["PL101"]


def test_a_thousand_services_are_read_in_a_second_or_so() -> None:
    text = "---\n".join(DOCUMENT.format(name=f"s{number}") for number in range(1000))
    started = time.process_time()
    loaded = stdin(text)
    assert len(loaded.services) == 1000
    assert time.process_time() - started < 5
