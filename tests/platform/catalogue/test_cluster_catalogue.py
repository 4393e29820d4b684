"""What a cluster has itself joins the catalogue: below what the user gives, above what everybody has."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pilotlight.release.plan_and_render import Documents, Sources, plan_documents, read

SERVICE = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: iris, namespace: lab}
spec:
  predictor:
    model: {modelFormat: {name: onnx}, storageUri: s3://models/iris, runtime: house}
"""
GIVEN = """
apiVersion: serving.kserve.io/v1alpha1
kind: ClusterServingRuntime
metadata: {name: house}
spec:
  supportedModelFormats: [{name: onnx}]
  containers: [{name: kserve-container, image: given:1}]
"""
OF_A_MODEL = """
apiVersion: ome.io/v1beta1
kind: InferenceService
metadata: {name: flowers, namespace: lab}
spec:
  model: {name: iris, kind: BaseModel}
  engine: {minReplicas: 1, runner: {name: ome-container}}
"""
Found = tuple[str, Mapping[str, Any]]


def runtime(name: str = "house", **more: Any) -> Found:
    container = {"name": "kserve-container", "image": "theirs:1"}
    spec = {"supportedModelFormats": [{"name": "onnx"}], "containers": [container], **more}
    document = {"apiVersion": "serving.kserve.io/v1alpha1", "kind": "ClusterServingRuntime", "spec": spec}
    return f"cluster: ClusterServingRuntime {name}", {**document, "metadata": {"name": name}}


def reading(folder: Path, *there: Found, text: str = SERVICE) -> Documents:
    (folder / "service.yaml").write_text(text)
    return read(Sources([str(folder)], target_catalogue=lambda _: there))


def image(documents: Documents) -> str:
    (plan,) = plan_documents(documents).plans
    container: dict[str, Any] = plan.workloads[0].template["spec"]["containers"][0]
    return str(container["image"])


def test_a_runtime_of_the_cluster_can_be_named_and_explain_says_where_it_is_from(tmp_path: Path) -> None:
    documents = reading(tmp_path, runtime())
    assert image(documents) == "theirs:1"
    (plan,) = plan_documents(documents).plans
    (reason,) = [made.reason for made in plan.decisions if made.topic == "runtime"]
    assert reason.endswith("from cluster: ClusterServingRuntime house")


def test_a_model_of_the_cluster_can_be_named_and_explain_says_where_it_is_from(tmp_path: Path) -> None:
    spec = {"modelFormat": {"name": "onnx"}, "storage": {"storageUri": "s3://models/iris"}}
    document = {"apiVersion": "ome.io/v1beta1", "kind": "BaseModel", "spec": spec}
    there = "cluster: BaseModel lab/iris", {**document, "metadata": {"name": "iris", "namespace": "lab"}}
    (plan,) = plan_documents(reading(tmp_path, there, text=OF_A_MODEL)).plans
    told = [(made.value, made.reason) for made in plan.decisions if made.topic == "model"]
    assert told == [("iris", "from cluster: BaseModel lab/iris")]


def test_a_document_of_the_user_wins(tmp_path: Path) -> None:
    documents = reading(tmp_path, runtime(), text=f"{SERVICE}---{GIVEN}")
    assert image(documents) == "given:1"
    assert any("is shadowed by that of" in sentence for sentence in documents.catalogue.shadowed)


def test_a_runtime_of_the_cluster_wins_over_a_built_in_one_of_the_same_name(tmp_path: Path) -> None:
    name = next(
        each.name
        for each in reading(tmp_path, runtime()).catalogue.runtimes
        if each.group == "kserve" and each.origin == "built-in"
    )
    found = [each for each in reading(tmp_path, runtime(), runtime(name)).catalogue.runtimes if each.name == name]
    assert [each.origin for each in found if each.kind == "ClusterServingRuntime" and each.group == "kserve"] == [
        f"cluster: ClusterServingRuntime {name}"
    ]


def test_namespaces_of_the_services_are_asked_for(tmp_path: Path) -> None:
    asked: list[Sequence[str]] = []

    def there(namespaces: Sequence[str]) -> list[Found]:
        asked.append(namespaces)
        return [runtime()]

    (tmp_path / "service.yaml").write_text(SERVICE)
    read(Sources([str(tmp_path)], target_catalogue=there))
    assert asked == [["lab"]]


def test_a_document_that_cannot_be_read_stops_nobody(tmp_path: Path) -> None:
    documents = reading(tmp_path, runtime("broken", containers="none"), runtime())
    assert image(documents) == "theirs:1"
    assert not documents.problems
    assert any(
        "cluster: ClusterServingRuntime broken is ignored" in sentence for sentence in documents.catalogue.shadowed
    )


def test_fields_of_a_later_version_are_left_out(tmp_path: Path) -> None:
    documents = reading(tmp_path, runtime(fromTheFuture=1))
    assert image(documents) == "theirs:1"
    assert any("fromTheFuture is unknown" in sentence for sentence in documents.catalogue.shadowed)


def test_a_release_keeps_what_it_was_made_with_and_nothing_else(tmp_path: Path) -> None:
    documents = reading(tmp_path, runtime("other"), runtime())
    kept = documents.documents_with(documents.services[0])
    assert [node.plain()["metadata"]["name"] for node in kept] == ["house"]
