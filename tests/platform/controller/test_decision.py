"""What the controller decides about one InferenceService: a row each."""

import io

import pytest
from msgspec import json
from msgspec.structs import replace
from tests.platform.controller.documents import IRIS, RUNTIME, Json, annotated, iris

from pilotlight.canaries.canary_state import Canary
from pilotlight.controller.decision import Observed, catalogue_changed, decide, failure, retry_s
from pilotlight.errors import Conflict, PlatformError, TimedOut
from pilotlight.plan.types import Capabilities
from pilotlight.release import history
from pilotlight.release.apply import ReleaseRequest, prepare
from pilotlight.release.plan_and_render import Documents, Sources, read
from pilotlight.spec.canary_policy import CanaryPolicy
from pilotlight.spec.problems import InvalidDocument, Problem, SourceLocation
from pilotlight.targets.kubernetes.apply import FieldConflict, OwnedByHelm
from pilotlight.targets.target import Release


def documents(*written: Json) -> Documents:
    text = "\n---\n".join(json.encode(each).decode() for each in written)
    return read(Sources(("-",), stdin=io.StringIO(text)))


def released(*written: Json, capabilities: Capabilities = Capabilities()) -> Release:  # noqa: B008
    (prepared,), _ = prepare(ReleaseRequest(documents(*written), capabilities), None)
    return replace(prepared.release, generation=1)


def observed(document: Json, release: Release | None, **more: Json) -> Observed:
    return Observed(documents(document).services[0], release, **more)


def canary(phase: str) -> Canary:
    ended = "2026-11-17T10:00:00Z" if phase != "Progressing" else ""
    return Canary(CanaryPolicy(), "iris-predictor-2", "iris-predictor-1", 2, 1, "2026-11-17T09:00:00Z", phase=phase,
                  reason="error_rate 7 %", ended_at=ended)  # type: ignore[arg-type] # fmt: skip


def step(document: Json, release: Release | None, **more: Json) -> tuple[str, str]:
    chosen = decide(observed(document, release, **more))
    return chosen.step, chosen.reason


RELEASED = released(IRIS)


@pytest.mark.parametrize(
    ("document", "release", "more", "expected"),
    [
        pytest.param(IRIS, None, {}, ("apply", "Created"), id="new"),
        pytest.param(IRIS, RELEASED, {}, ("none", ""), id="unchanged"),
        pytest.param(iris(maxReplicas=4), RELEASED, {}, ("apply", "Updated"), id="changed"),
        pytest.param(IRIS, RELEASED, {"catalogue_changed": True}, ("apply", "CatalogueChanged"), id="catalogue"),
        pytest.param(IRIS, RELEASED, {"complete": False}, ("reapply", "RolloutResumed"), id="interrupted"),
        pytest.param(IRIS, RELEASED, {"drift": ("Service iris",)}, ("reapply", "DriftRepaired"), id="drift"),
        pytest.param(
            IRIS, RELEASED, {"drift": ("Service iris",), "unrepaired": ("Service iris",)}, ("none", ""),
            id="drift that a repair does not change",
        ),
        pytest.param(
            annotated(iris(maxReplicas=4), paused="true"), RELEASED, {"drift": ("Service iris",)}, ("none", "Paused"),
            id="paused",
        ),
        pytest.param(annotated(IRIS, replan="2"), RELEASED, {}, ("apply", "Updated"), id="plan anew"),
    ],
)  # fmt: skip
def test_decision(document: Json, release: Release, more: Json, expected: tuple[str, str]) -> None:
    assert step(document, release, **more) == expected


def test_another_version_of_the_same_document_changes_nothing() -> None:
    chat = {"kind": "LLMInferenceService", "metadata": {"name": "chat"}, "spec": {"model": {"uri": "hf://org/model"}}}
    release = released({"apiVersion": "serving.kserve.io/v1alpha2", **chat})
    assert step({"apiVersion": "serving.kserve.io/v1alpha1", **chat}, release) == ("none", "")


def test_what_the_command_line_deployed_is_not_deployed_again() -> None:
    """Its stored document has the flags of the deploy, the object the labels of the service."""
    stored = released(IRIS, capabilities=Capabilities(knative=False, image="mine/predictor:2", default_mode="raw"))
    assert "planned-with" in stored.document
    labels = {"app.kubernetes.io/managed-by": "pilotlight", "pilotlight.dev/service": "iris"}
    labelled = {**IRIS, "metadata": {**IRIS["metadata"], "labels": labels}}
    assert step(labelled, stored) == ("none", "")


def test_a_label_of_the_user_is_a_change() -> None:
    labelled = {**IRIS, "metadata": {**IRIS["metadata"], "labels": {"team": "vision"}}}
    assert step(labelled, RELEASED) == ("apply", "Updated")


def canary_release(document: Json) -> Release:
    shared = history.with_canary_percent(documents(document), 25, judged=True)
    (prepared,), _ = prepare(ReleaseRequest(shared, Capabilities()), None)
    return replace(prepared.release, generation=2)


def test_a_canary_that_runs_is_left_to_its_runner() -> None:
    newer = iris(timeout=120)
    assert step(newer, canary_release(newer), canary=canary("Progressing"), drift=("x",)) == ("none", "")


def test_a_canary_whose_runner_has_applied_the_stable_release_and_not_ended_it_yet_is_left_alone() -> None:
    newer, running = iris(timeout=120), canary("Progressing")
    assert step(newer, RELEASED, canary=running, canary_release=canary_release(newer)) == ("none", "")
    assert step(iris(timeout=99), RELEASED, canary=running, canary_release=canary_release(newer)) == (
        "apply",
        "Updated",
    )


def test_an_edit_replaces_a_canary_that_runs() -> None:
    running = canary_release(iris(timeout=120))
    assert step(iris(timeout=99), running, canary=canary("Progressing")) == ("apply", "Updated")


def test_a_document_that_was_rolled_back_is_not_tried_again_until_it_changes() -> None:
    tried = canary_release(iris(timeout=120))
    ended = {"canary": canary("RolledBack"), "canary_release": tried}
    chosen = decide(observed(iris(timeout=120), RELEASED, **ended))
    assert (chosen.step, chosen.reason) == ("none", "CanaryRolledBack")
    assert "error_rate 7 %" in chosen.message
    assert step(iris(timeout=99), RELEASED, **ended) == ("apply", "Updated")
    assert step(IRIS, RELEASED, **ended) == ("none", "")


def test_a_runtime_that_changed_in_the_cluster_is_a_change() -> None:
    release = released(IRIS, RUNTIME)
    newer = {**RUNTIME, "spec": {**RUNTIME["spec"], "disabled": True}}
    other = {**newer, "metadata": {"name": "other"}}
    assert not catalogue_changed(release, [RUNTIME, other])
    assert catalogue_changed(release, [newer])
    assert not catalogue_changed(release, [])  # deleted: the release has a copy


def invalid() -> InvalidDocument:
    where = SourceLocation("InferenceService models/iris")
    return InvalidDocument(
        [Problem("PL101", where, "spec.x", "is unknown"), Problem("PL350", where, "", "", "warning")]
    )


@pytest.mark.parametrize(
    ("error", "reason", "message"),
    [
        (invalid(), "InvalidSpec", "InferenceService models/iris: error PL101: spec.x: is unknown"),
        (FieldConflict("2 fields", "--force-conflicts"), "FieldConflict", "2 fields"),
        (OwnedByHelm("it is Helm's", "helm upgrade"), "OwnedByHelm", "it is Helm's (helm upgrade)"),
        (PlatformError("the cluster does not answer"), "ReconcileFailed", "the cluster does not answer"),
    ],
)
def test_errors_become_conditions(error: PlatformError, reason: str, message: str) -> None:
    condition = failure(error)
    assert (condition.type, condition.status, condition.reason, condition.message) == (
        "Ready",
        "False",
        reason,
        message,
    )


def test_a_rollout_that_waits_is_no_failure() -> None:
    assert failure(TimedOut("iris-canary does not answer")).status == "Unknown"


def test_attempts_back_off() -> None:
    error = PlatformError("refused")
    assert [retry_s(error, failures, 0.0, 600.0) for failures in (0, 1, 5, 12)] == [1.0, 2.0, 32.0, 300.0]
    assert retry_s(error, 0, 1.0, 600.0) == pytest.approx(1.1)
    assert retry_s(Conflict("quicker"), 7, 0.0, 600.0) == 1.0
    assert retry_s(invalid(), 3, 0.0, 600.0) == 600.0
    assert retry_s(TimedOut("not yet"), 9, 0.0, 600.0) == 10.0


def test_a_service_that_its_own_version_would_render_differently_is_left_alone() -> None:
    """Only documents are compared: a newer controller must not restart what runs."""
    older = replace(RELEASED, manifests=tuple({**each, "spec": {}} for each in RELEASED.manifests))
    assert step(IRIS, older) == ("none", "")
