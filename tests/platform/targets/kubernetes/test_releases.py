"""What is kept of a release in a cluster, and how a refusal of its API server is told."""

import pytest
from msgspec.structs import replace
from tests.platform.targets.kubernetes.objects import deployment, scaled_object

from pilotlight.errors import Conflict
from pilotlight.k8s.manifest import Manifest
from pilotlight.targets.kubernetes import releases
from pilotlight.targets.kubernetes.apply import apply_error
from pilotlight.targets.kubernetes.client import KubeApiError
from pilotlight.targets.target import Release

SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s3"}, "stringData": {"key": "hidden"}}
SECRET_TEXT = "apiVersion: v1\nkind: Secret\nmetadata: {name: s3}\nstringData: {key: hidden}\n"
MODEL_TEXT = "apiVersion: ome.io/v1beta1\nkind: BaseModel\nmetadata: {name: iris}\n"
RELEASE = Release(
    "default", "iris", "kind: InferenceService", (deployment("iris-predictor", "iris-predictor-1"), SECRET),
    (SECRET_TEXT, MODEL_TEXT), note="deploy",
)  # fmt: skip


def test_a_release_is_read_back_as_it_was_kept() -> None:
    kept = releases.read(releases.to_object(RELEASE, 3, "2026-01-31T12:00:00Z"))
    assert (kept.namespace, kept.name, kept.generation, kept.at) == ("default", "iris", 3, "2026-01-31T12:00:00Z")
    assert (kept.document, kept.note) == (RELEASE.document, "deploy")
    assert kept.manifests == RELEASE.manifests[:1]


def test_no_secret_is_kept_neither_as_an_object_nor_as_text() -> None:
    assert "hidden" not in str(releases.to_object(RELEASE, 1, ""))
    assert MODEL_TEXT in releases.to_object(RELEASE, 1, "")["data"]["catalogue"]


def test_the_same_release_is_known_again_whatever_its_note() -> None:
    again = Release("default", "iris", RELEASE.document, RELEASE.manifests, RELEASE.catalogue, note="rollback")
    other = Release("default", "iris", RELEASE.document, (deployment("iris-predictor", "iris-predictor-2"),))
    assert releases.same(RELEASE, again)
    assert not releases.same(RELEASE, other)


def test_two_generations_have_two_names_and_two_deploys_of_one_generation_have_one() -> None:
    names = [releases.to_object(RELEASE, number, "")["metadata"]["name"] for number in (1, 2, 2)]
    assert names[0] != names[1] == names[2]


def test_a_release_follows_only_the_generation_that_it_was_planned_for() -> None:
    third = releases.read(releases.to_object(RELEASE, 3, "2026-01-31T12:00:00Z"))
    assert releases.next_generation([third], replace(RELEASE, expected=3)) == 4
    assert releases.next_generation([], replace(RELEASE, expected=1)) == 2, (
        "what came by another way counts as the first"
    )
    assert releases.next_generation([third], RELEASE) == 4, "nobody said what was expected"
    with pytest.raises(Conflict, match="at generation 3, not 2"):
        releases.next_generation([third], replace(RELEASE, expected=2))


def refused(code: int, **status: object) -> str:
    scaled = Manifest(scaled_object("iris-predictor", "prometheus"))
    error = apply_error(scaled, KubeApiError(code, status, "PATCH /somewhere"))
    return f"{error}\n{error.hint}"


def test_a_conflict_is_told_field_by_field_with_who_and_what() -> None:
    causes = [
        {"reason": "FieldManagerConflict", "field": ".spec.maxReplicaCount", "message": 'conflict with "kubectl-edit"'},
        {"reason": "FieldManagerConflict", "field": ".spec.triggers", "message": 'conflict with "argocd"'},
    ]
    told = refused(409, reason="Conflict", details={"causes": causes})
    assert "ScaledObject iris-predictor: 2 fields are managed by other tools" in told
    assert "  .spec.maxReplicaCount: set by kubectl-edit; the manifest has 4" in told
    assert "  .spec.triggers: set by argocd\n" in told
    assert "--force-conflicts" in told


def test_a_webhook_is_told_in_its_own_words() -> None:
    message = 'admission webhook "vscaledobject.kb.io" denied the request: the workload is already managed by theirs'
    assert refused(403, message=message).startswith(
        "ScaledObject iris-predictor: the workload is already managed by theirs\n"
    )


def test_revisions_that_did_not_start_are_read_with_their_release() -> None:
    kept = releases.to_object(RELEASE, 3, "")
    kept["metadata"]["annotations"] = {releases.FAILED: "iris-predictor-1,iris-predictor-2"}
    assert releases.read(kept).failed == ("iris-predictor-1", "iris-predictor-2")
