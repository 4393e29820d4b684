"""What a target gets and keeps of a document: enough to plan the same revision again, from anywhere."""

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import ROOT

from pilotlight.contract import LOCAL_CAPABILITIES
from pilotlight.errors import Conflict, NotFound, OnOtherTarget, PlatformError, UsageError
from pilotlight.k8s.manifest import Manifest
from pilotlight.k8s.names import ANNOTATION_TOKENS
from pilotlight.plan.types import Capabilities
from pilotlight.release import apply as release_apply
from pilotlight.release import history
from pilotlight.release.plan_and_render import Sources, read
from pilotlight.spec.problems import InvalidDocument
from pilotlight.targets.target import Event, Key, Release, ServiceRoute, ServiceStatus, Share

SERVICE = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: iris}
spec:
  predictor:
    minReplicas: 0
    model:
      modelFormat: {name: onnx}
      protocolVersion: v2
      storageUri: ./model.onnx
"""
GRAPH = """
apiVersion: serving.kserve.io/v1alpha1
kind: InferenceGraph
metadata: {name: graph}
spec:
  nodes:
    root:
      routerType: Sequence
      steps:
"""
RUNTIME = """
apiVersion: serving.kserve.io/v1alpha1
kind: ClusterServingRuntime
metadata: {name: mine}
spec:
  supportedModelFormats: [{name: onnx, autoSelect: true, priority: 99}]
  protocolVersions: [v1, v2]
  containers: [{name: kserve-container, image: "example.com/mine:1"}]
"""
SECRET = "apiVersion: v1\nkind: Secret\nmetadata: {name: key}\nstringData: {a: b}\n"
KEY = ("default", "iris")
EXAMPLES = sorted((ROOT / "examples/services").glob("*.yaml"))


class Shelf:
    """A target that keeps releases and runs nothing. `rivals` deploys come first, each just before one of ours."""

    name = "shelf"
    poll_s = 0.05
    embedded = True

    def __init__(self, rivals: int = 0) -> None:
        self.kept: list[Release] = []
        self.rivals = rivals

    def capabilities(self) -> dict[str, Any]:
        return {}

    def open_route(self, status: ServiceStatus) -> AbstractContextManager[ServiceRoute]:
        return nullcontext(ServiceRoute(status.url))

    def probe(self, status: ServiceStatus) -> str:
        return ""

    def record_status(self, status: ServiceStatus) -> None:
        return

    def live(self, key: Key) -> list[Manifest]:
        return [Manifest(document) for document in self.kept[0].manifests] if self.kept else []

    def apply(self, release: Release, *, reset: bool = False, dry_run: bool = False) -> ServiceStatus:
        if self.rivals:
            self.rivals -= 1
            self.kept.insert(0, release)
        if release.expected != len(self.kept):
            raise Conflict("somebody was quicker")
        self.kept.insert(0, release)
        return self.status(KEY)

    def status(self, key: Key) -> ServiceStatus:
        if not self.kept:
            raise NotFound("nothing")
        return ServiceStatus(*key, len(self.kept), "Ready", "")

    def list(self, namespace: str | None) -> Sequence[ServiceStatus]:
        return [self.status(KEY)]

    def releases(self, key: Key) -> Sequence[Release]:
        return self.kept

    def scale(self, key: Key, bounds: Mapping[str, int] | None) -> ServiceStatus:
        raise NotImplementedError

    def traffic(self, key: Key, shares: Sequence[Share] | None) -> ServiceStatus:
        raise NotImplementedError

    def logs(self, key: Key, *, follow: bool, previous: bool, replica: str, tail: int) -> Iterator[str]:
        return iter(())

    def events(self, key: Key | None, *, follow: bool) -> Iterator[Event]:
        return iter(())

    def delete(self, key: Key) -> None:
        raise NotImplementedError


def prepared(*files: Path, sets: Sequence[str] = (), offered: Capabilities | None = None, **how: Any) -> Any:
    documents = read(Sources([str(file) for file in files], sets=sets, **how))
    return release_apply.prepare(release_apply.ReleaseRequest(documents, offered or Capabilities()), None)[0]


def again(release: Release) -> Any:
    return release_apply.prepare(release_apply.ReleaseRequest(*release_apply.read_release(release)), None)[0][0]


def revisions(one: Any) -> list[str]:
    return [work.revision for work in one.plan.workloads]


def written(folder: Path, text: str = SERVICE, name: str = "service.yaml") -> Path:
    (folder / name).write_text(text)
    return folder / name


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_what_is_kept_of_an_example_gives_the_same_manifests_again(file: Path) -> None:
    for one in prepared(file):
        repeated = again(one.release)
        assert revisions(repeated) == revisions(one)
        assert repeated.release.manifests == one.release.manifests
        assert repeated.release.document == one.release.document


def test_paths_changes_and_variables_are_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path, SERVICE.replace("minReplicas: 0", "maxReplicas: ${MOST}"))
    (one,) = prepared(file, sets=["spec.predictor.minReplicas=2"], environ={"MOST": "5"})
    monkeypatch.chdir("/")
    repeated = again(one.release)
    assert f"storageUri: {tmp_path}/model.onnx" in one.release.document
    assert revisions(repeated) == revisions(one)
    assert (repeated.plan.workloads[0].scaling.min_replicas, repeated.plan.workloads[0].scaling.max_replicas) == (2, 5)


def test_a_path_that_is_set_is_where_it_was_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (one,) = prepared(written(tmp_path), sets=["spec.predictor.model.storageUri=./other.onnx"])
    assert f"storageUri: {folder}/other.onnx" in one.release.document


def test_how_it_was_planned_is_kept_where_that_is_not_as_usual(tmp_path: Path) -> None:
    usual, other = Capabilities(), Capabilities(default_mode="raw", pod_security="baseline", domain="example.net")
    (plain,) = prepared(written(tmp_path), offered=usual)
    (raw,) = prepared(written(tmp_path), offered=other)
    assert release_apply.PLANNED_WITH not in plain.release.document
    repeated = again(raw.release)
    assert repeated.plan.mode == "raw"
    assert release_apply.read_release(raw.release)[1] == other
    assert revisions(repeated) == revisions(raw) != revisions(plain)


def test_a_release_of_this_machine_is_planned_for_it_again(tmp_path: Path) -> None:
    file = written(tmp_path, SERVICE.replace("onnx}", "huggingface}"))
    (one,) = prepared(file, offered=Capabilities(**LOCAL_CAPABILITIES))
    assert revisions(again(one.release)) == revisions(one)
    assert one.plan.workloads[0].is_pilotlight


def test_gpus_of_the_cluster_are_no_difference_between_documents_but_a_release_is_planned_with_them_again() -> None:
    text = (
        "apiVersion: ome.io/v1beta1\nkind: InferenceService\nmetadata: {name: llama}\n"
        "spec: {model: {name: llama-3-1-8b-instruct}, engine: {minReplicas: 1}}\n"
    )
    documents = read(Sources(("-",), stdin=io.StringIO(text)))
    offers = Capabilities(), Capabilities(gpus=1, gpus_total=4, gpu_memory=24 << 30)
    requests = [release_apply.ReleaseRequest(documents, offered) for offered in offers]
    usual, small = (release_apply.prepare(request, None)[0][0] for request in requests)
    assert history.released_document(small.release) == history.released_document(usual.release)
    assert revisions(again(small.release)) == revisions(small) != revisions(usual)


def test_documents_beside_the_service_are_kept_with_it(tmp_path: Path) -> None:
    (one,) = prepared(
        written(tmp_path, SERVICE.replace("./", "s3://models/")),
        written(tmp_path, RUNTIME, "runtime.yaml"),
        written(tmp_path, SECRET, "secret.yaml"),
    )
    repeated = again(one.release)
    image = repeated.plan.workloads[0].template["spec"]["containers"][0]["image"]
    assert image == "example.com/mine:1"
    assert [m.kind for m in repeated.manifests].count("Secret") == 1


def test_all_services_are_planned_before_any_is_applied(tmp_path: Path) -> None:
    good = written(tmp_path)
    bad = written(tmp_path, SERVICE.replace("name: iris", "name: bad").replace("onnx}", "nobody-knows}"), "bad.yaml")
    with pytest.raises(InvalidDocument):
        prepared(good, bad)


def test_services_of_a_graph_that_are_not_deployed_are_named_once_each_with_their_place(tmp_path: Path) -> None:
    class Half(Shelf):
        def status(self, key: Key) -> ServiceStatus:
            raise OnOtherTarget("runs on docker") if key[1] == "elsewhere" else NotFound("nothing")

    steps = "".join(f"      - serviceName: {name}\n" for name in ("beside", "elsewhere", "missing", "missing"))
    graph = f"{GRAPH}{steps}      - serviceUrl: http://example.com\n"
    beside = written(tmp_path, SERVICE.replace("name: iris", "name: beside"), "beside.yaml")
    documents = read(Sources([str(written(tmp_path, graph, "graph.yaml")), str(beside)]))
    _, warnings = release_apply.prepare(release_apply.ReleaseRequest(documents, Capabilities()), Half())
    (missing,) = (each for each in warnings if each.code == "PL388")
    assert missing.path == "spec.nodes.root.steps[2].serviceName"
    assert (missing.location.line, missing.severity) == (12, "warning")
    assert "missing, which is not deployed in default" in missing.message


def test_a_model_name_of_two_services_is_warned_about_with_the_one_that_it_reaches(tmp_path: Path) -> None:
    class Shared(Shelf):
        def live(self, key: Key) -> list[Manifest]:
            beta = {"metadata": {"annotations": {"pilotlight.dev/model-names": "beta, gpt-4o"}}}
            return [Manifest(beta)] if key == ("default", "beta") else []

        def list(self, namespace: str | None) -> Sequence[ServiceStatus]:
            return [ServiceStatus("default", "beta", 1, "Ready", "")]

    for claimed, message in (
        ("iris, gpt-4o", "gpt-4o is a name of default/beta too: at /v1 it reaches default/beta; rename one"),
        ("gpt-4o", "gpt-4o is a name of default/beta too: at /v1 it reaches default/iris; rename one"),
        ("iris", ""),
    ):
        annotated = f'{{name: iris, annotations: {{pilotlight.dev/model-names: "{claimed}"}}}}'
        documents = read(Sources([str(written(tmp_path, SERVICE.replace("{name: iris}", annotated)))]))
        _, warnings = release_apply.prepare(release_apply.ReleaseRequest(documents, Capabilities()), Shared())
        assert [each.message for each in warnings if each.code == "PL391"] == ([message] if message else [])


def test_a_deploy_that_comes_second_is_planned_again_from_what_the_first_left(tmp_path: Path) -> None:
    shelf = Shelf(rivals=2)
    wanted = release_apply.ReleaseRequest(read(Sources([str(written(tmp_path))])), Capabilities())
    made, _ = release_apply.prepare(wanted, shelf)
    ((one, status),) = release_apply.apply(wanted, made, shelf, sleep=lambda seconds: None)
    assert one.release.expected == 2
    assert status.generation == 3


def test_it_gives_up_when_somebody_is_always_quicker(tmp_path: Path) -> None:
    shelf = Shelf(rivals=100)
    wanted = release_apply.ReleaseRequest(read(Sources([str(written(tmp_path))])), Capabilities())
    made, _ = release_apply.prepare(wanted, shelf)
    pauses: list[float] = []
    with pytest.raises(Conflict):
        release_apply.apply(wanted, made, shelf, sleep=pauses.append)
    assert len(pauses) == release_apply.MAX_ATTEMPTS - 1


def release(text: str = SERVICE, generation: int = 1, percent: int | None = None) -> Release:
    documents = read(Sources(("-",), stdin=io.StringIO(text.replace("./", "s3://m/"))))
    wanted = release_apply.ReleaseRequest(history.with_canary_percent(documents, percent), Capabilities())
    (one,), _ = release_apply.prepare(wanted, None)
    return replace_generation(one.release, generation)


def replace_generation(found: Release, generation: int) -> Release:
    import msgspec

    return msgspec.structs.replace(found, generation=generation)


OTHER = SERVICE.replace("minReplicas: 0", "minReplicas: 0\n    maxReplicas: 7")
THIRD = SERVICE.replace("minReplicas: 0", "minReplicas: 0\n    maxReplicas: 9")


def test_the_share_is_in_the_document_and_can_be_taken_out_again() -> None:
    whole, part = release(), release(percent=20)
    assert history.canary_percent(whole) is None
    assert history.canary_percent(part) == 20
    assert history.released_document(part) == history.released_document(whole)


def test_a_canary_stands_beside_the_last_release_that_had_everything() -> None:
    found = [release(OTHER, 4, 50), release(OTHER, 3, 20), release(SERVICE, 2), release(THIRD, 1)]
    running = history.running_canary(found)
    assert running is not None
    assert (running.release.generation, running.stable.generation, running.percent) == (4, 2, 50)
    assert history.running_canary(found[2:]) is None


def test_rollback_goes_to_another_document_that_had_all_requests_and_worked() -> None:
    promoted = [release(OTHER, 4), release(OTHER, 3, 20), release(SERVICE, 2), release(THIRD, 1)]
    assert history.previous_release(promoted, "").generation == 2
    broken = history.revisions(promoted[2])
    assert history.previous_release(promoted, "", broken).generation == 1


def test_rollback_by_generation_by_revision_and_by_the_end_of_its_name() -> None:
    found = [release(OTHER, 2), release(SERVICE, 1)]
    (name,) = history.revisions(found[1])
    assert {history.previous_release(found, to).generation for to in ("1", name, name.rpartition("-")[2])} == {1}


def closed(token: str, text: str = SERVICE) -> str:
    return text.replace("{name: iris}", f'{{name: iris, annotations: {{{ANNOTATION_TOKENS}: "{token * 64}"}}}}')


def test_rollback_keeps_the_access_rules_of_today() -> None:
    rotated, earlier, opened = release(closed("b", OTHER), 3), release(closed("a"), 2), release(THIRD, 1)
    for old in (earlier, opened):
        request = history.redeploy_request(old, None, "", newest=rotated)
        (service,) = request.documents.services
        assert service.annotations[ANNOTATION_TOKENS] == "b" * 64
        assert service.document["metadata"]["annotations"] == {ANNOTATION_TOKENS: "b" * 64}
        assert history.comparable_document(service, request.capabilities) == history.released_document(old)
    (service,) = history.redeploy_request(earlier, None, "", newest=opened).documents.services
    assert ANNOTATION_TOKENS not in service.annotations


def test_a_stored_release_gets_the_access_rules_of_today_and_stays_the_same_revision() -> None:
    rotated, earlier, opened = release(closed("b", OTHER), 3), release(closed("a"), 2), release(THIRD, 1)
    for old in (earlier, opened):
        found = history.with_current_access(old, rotated)
        assert history.revisions(found) == history.revisions(old)
        assert "a" * 64 not in str(found)
        (workload,) = [one for one in found.manifests if one["metadata"].get("annotations", {}).get(ANNOTATION_TOKENS)]
        assert workload["metadata"]["annotations"][ANNOTATION_TOKENS] == "b" * 64
        assert history.released_document(found) == history.released_document(old)
    assert ANNOTATION_TOKENS not in str(history.with_current_access(earlier, opened).manifests)


def test_a_release_with_other_workloads_cannot_get_the_access_rules() -> None:
    raw = SERVICE.replace("{name: iris}", "{name: iris, annotations: {serving.kserve.io/deploymentMode: Standard}}")
    with pytest.raises(PlatformError, match="has different workloads than the access rules"):
        history.with_current_access(release(raw, 1), release(closed("a"), 2))


def test_a_new_token_alone_is_nothing_to_roll_back() -> None:
    found = [release(closed("b"), 3), release(closed("a"), 2), release(OTHER, 1)]
    assert history.previous_release(found, "").generation == 1


@pytest.mark.parametrize(("to", "why"), [("", "there is no earlier release"), ("9", "generation 9 is not stored")])
def test_where_there_is_nothing_to_go_back_to_it_says_what_is_kept(to: str, why: str) -> None:
    with pytest.raises(NotFound, match=f"{why}; stored: 1 \\(iris-predictor-"):
        history.previous_release([release()], to)


def test_after_an_aborted_canary_rollback_says_why_there_is_nothing_and_how_to_insist() -> None:
    aborted = [release(SERVICE, 3), release(OTHER, 2, 20), release(SERVICE, 1)]
    with pytest.raises(
        NotFound, match="earlier releases failed or were aborted canaries; choose one with --to; stored: 3"
    ):
        history.previous_release(aborted, "")
    assert history.previous_release(aborted, "2").generation == 2


def test_revisions_that_failed_and_never_answered_are_known_by_events() -> None:
    def event(kind: str, reason: str, name: str) -> Event:
        return Event("", *KEY, name, kind, reason, "")  # type: ignore[arg-type]

    happened = [
        event("Warning", "Failed", "Replica/iris-bad-x1"), event("Warning", "Failed", "Replica/iris-good-x2"),
        event("Normal", "Ready", "Revision/iris-good"), event("Normal", "Ready", "Revision/iris-other"),
    ]  # fmt: skip
    assert history.failed_revisions(happened) == {"iris-bad"}


def test_what_was_set_by_hand_changes_no_revision(tmp_path: Path) -> None:
    """The target lays it over the manifests; a revision of its own would outlive the reset."""
    shelf = Shelf()
    wanted = release_apply.ReleaseRequest(read(Sources([str(written(tmp_path))])), Capabilities())
    (first,), _ = release_apply.prepare(wanted, shelf)
    release_apply.apply(wanted, [first], shelf)
    scaled = [dict(document) for document in shelf.kept[0].manifests]
    for document in scaled:
        if document["kind"] == "Service":
            annotations = {"pilotlight.dev/overrides": '{"minReplicas": 3}'}
            document["metadata"] = {**document["metadata"], "annotations": annotations}
    shelf.live = lambda key: [Manifest(document) for document in scaled]  # type: ignore[method-assign]
    (second,), _ = release_apply.prepare(wanted, shelf)
    assert second.overrides == {"iris-predictor": {"minReplicas": 3}}
    assert revisions(second) == revisions(first)
    assert not any("overrides" in str(manifest.document) for manifest in second.live_manifests)
    (reset,), _ = release_apply.prepare(replace(wanted, reset=True), shelf)
    assert not reset.overrides


def test_a_file_beside_the_document_is_refused_where_pods_run_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "service.yaml"
    file.write_text(SERVICE)
    wanted = release_apply.ReleaseRequest(read(Sources((str(file),))), Capabilities())
    elsewhere = Shelf()
    elsewhere.embedded = False
    with pytest.raises(UsageError, match=r"storageUri: \./model\.onnx is on this machine") as caught:
        release_apply.prepare(wanted, elsewhere)
    assert f"{file}:" in str(caught.value)
    assert "--set spec.predictor.model.storageUri=s3://" in caught.value.hint


def kept(generation: int, revision: str) -> Release:
    manifest = {"spec": {"template": {"metadata": {"name": revision}}}}
    return Release("default", "iris", "", (manifest,), generation=generation)


@pytest.mark.parametrize(("to", "generation"), [("2", 2), ("53794996", 1), ("iris-53794996", 1), ("9ca9e3ec", 3)])
def test_a_hash_without_a_letter_is_no_generation(to: str, generation: int) -> None:
    found = [kept(3, "iris-9ca9e3ec"), kept(2, "iris-00000042"), kept(1, "iris-53794996")]
    assert history.previous_release(found, to).generation == generation
    with pytest.raises(NotFound, match="generation 42 is not stored"):
        history.previous_release(found, "42")
