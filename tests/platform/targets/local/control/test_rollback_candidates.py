"""Which release an automatic rollback deploys again, and which never."""

import pytest

from pilotlight.targets.local.control.rollback_candidates import rollback_candidates, with_failed_revisions
from pilotlight.targets.local.store.schema import StoredRevision, Verification
from pilotlight.targets.target import Release


def release(generation: int, *revisions: str) -> Release:
    manifests = tuple(
        {
            "apiVersion": "serving.knative.dev/v1",
            "kind": "Service",
            "metadata": {"name": name.rpartition("-")[0]},
            "spec": {"template": {"metadata": {"name": name}, "spec": {"containers": [{}]}}},
        }
        for name in revisions
    )
    return Release("default", "iris", f"document {generation}", manifests, generation=generation)


def recorded(
    name: str, verification: Verification = "unverified", *, ready: bool = True, failed: str = ""
) -> StoredRevision:
    at = "2025-03-01T12:00:00Z"
    workload = name.rpartition("-")[0]
    reason = "all 500" if verification == "failing" else ""
    return StoredRevision(
        "default", "iris", workload, name, 1, at, at if ready else "", failed, verification, reason, b"[]"
    )


FIRST, SECOND, THIRD = release(1, "iris-0"), release(2, "iris-1"), release(3, "iris-2")
FAILING = recorded("iris-2", "failing")


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        pytest.param([recorded("iris-0", "verified"), recorded("iris-1", "verified")], [2, 1], id="newest"),
        pytest.param([recorded("iris-0", "verified"), recorded("iris-1")], [1, 2], id="answered before ready"),
        pytest.param(
            [recorded("iris-0", "verified"), recorded("iris-1", "unknown", ready=False)], [1, 2], id="never ready"
        ),
        pytest.param([recorded("iris-0"), recorded("iris-1", "unknown", ready=False)], [1, 2], id="ready before never"),
        pytest.param([recorded("iris-0", "verified"), recorded("iris-1", "failing")], [1], id="failed its answers"),
        pytest.param([recorded("iris-0"), recorded("iris-1", failed="no such file")], [1], id="cannot start"),
        pytest.param([recorded("iris-0", "verified"), recorded("iris-1", "unknown")], [2, 1], id="another server"),
        pytest.param([recorded("iris-0"), recorded("iris-1")], [2, 1], id="none has answered"),
        pytest.param([recorded("iris-0", "failing"), recorded("iris-1", "failing")], [], id="all failed"),
        pytest.param([recorded("iris-1")], [2], id="one is forgotten"),
        pytest.param([], [], id="nothing else"),
    ],
)
def test_a_release_that_has_answered_is_preferred_and_one_that_failed_never_taken(
    others: list[StoredRevision], expected: list[int]
) -> None:
    chosen = rollback_candidates([THIRD, SECOND, FIRST], [FAILING, *others], "iris-2")
    assert [each.generation for each in chosen] == expected


def test_the_failing_revision_is_no_candidate_though_its_failure_is_not_stored_yet() -> None:
    stored = [recorded("iris-2", "verified"), recorded("iris-1")]
    assert rollback_candidates([THIRD, SECOND], stored, "iris-2") == [SECOND]


def test_a_release_is_as_trusted_as_the_least_of_its_revisions() -> None:
    mixed, ready = release(2, "iris-1", "transformer-1"), release(1, "iris-0")
    stored = [recorded("iris-1", "verified"), recorded("transformer-1", ready=False), recorded("iris-0")]
    assert rollback_candidates([THIRD, mixed, ready], [FAILING, *stored], "iris-2") == [ready, mixed]


def test_going_back_again_and_again_ends() -> None:
    releases = [THIRD, SECOND, FIRST]
    stored = {name: recorded(name) for name in ("iris-0", "iris-1", "iris-2")}
    serving, hops = "iris-2", 0
    while True:
        stored[serving] = recorded(serving, "failing")
        candidates = rollback_candidates(releases, stored.values(), serving)
        if not candidates:
            break
        serving = str(candidates[0].manifests[0]["spec"]["template"]["metadata"]["name"])
        hops += 1
        releases.insert(0, release(releases[0].generation + 1, serving))
    assert (serving, hops) == ("iris-0", 2)


def test_releases_name_their_failed_revisions() -> None:
    stored = [FAILING, recorded("iris-1"), recorded("iris-0", failed="no such file")]
    found = with_failed_revisions([THIRD, SECOND, FIRST], stored)
    assert [each.failed for each in found] == [("iris-2",), (), ("iris-0",)]
