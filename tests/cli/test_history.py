"""`platformctl history`: rows of releases, as a cluster stores them; test_embedded_verbs.py has it on this machine."""

from msgspec.structs import replace
from tests.platform.targets.kubernetes.objects import deployment

from pilotlight.targets.kubernetes import releases
from pilotlight.targets.target import Release, RevisionStatus, ServiceStatus
from platformctl.commands.service.history import release_rows

DOCUMENT = "kind: InferenceService\nmetadata: {name: iris}\nspec: {predictor: {maxReplicas: %d}}\n"


def stored(generation: int, revision: str, most: int, note: str = "deploy", failed: str = "", by: str = "") -> Release:
    objects = (deployment("iris-predictor", revision),)
    release = Release("default", "iris", DOCUMENT % most, objects, note=note, by=by)
    kept = releases.read(releases.to_object(release, generation, f"2026-01-0{generation}T00:00:00Z"))
    return replace(kept, failed=(failed,) if failed else ())


def serving(**percent: int) -> ServiceStatus:
    rows = tuple(RevisionStatus(name, "iris-predictor", "predictor", share) for name, share in percent.items())
    return ServiceStatus("default", "iris", 4, "Ready", "", revisions=rows)


def test_each_release_has_its_reason_its_change_and_what_it_serves_now() -> None:
    first = stored(2, "a1", 3, by="ana")
    kept = [stored(4, "a1", 3, "rollback to generation 2"), stored(3, "b2", 5, failed="b2"), first]
    newest, broken, oldest = release_rows(kept, serving(a1=100), set())
    assert (newest["reason"], newest["percent"], newest["failed"]) == ("rollback to generation 2", 100, False)
    assert [each["text"] for each in newest["changes"]] == ["spec.predictor.maxReplicas: 5 → 3"]
    assert (broken["percent"], broken["failed"], broken["revisions"]) == (0, True, ["b2"])
    assert (newest["deployed_by"], oldest["deployed_by"]) == ("", "ana")
    assert (oldest["percent"], oldest["changes"], oldest["first"]) == (0, [], False)  # the newer one of a1 serves


def test_during_a_canary_both_releases_serve() -> None:
    kept = [stored(2, "b2", 5), stored(1, "a1", 3)]
    canary, stable = release_rows(kept, serving(b2=20, a1=80), set())
    assert (canary["percent"], stable["percent"], stable["first"]) == (20, 80, True)


def test_a_release_that_never_became_ready_serves_nothing() -> None:
    status = serving(a1=100)
    broken = replace(status, revisions=(replace(status.revisions[0], model_state="FailedToLoad"),))
    for kept, failed in ((stored(1, "a1", 3), {"a1"}), (stored(1, "a1", 3, failed="a1"), set())):
        assert [(row["percent"], row["failed"]) for row in release_rows([kept], broken, failed)] == [(0, True)]
    (once_ready,) = release_rows([stored(1, "a1", 3)], broken, set())
    assert (once_ready["percent"], once_ready["failed"]) == (100, False)
