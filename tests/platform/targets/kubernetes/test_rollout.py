"""The order in which a release takes hold, decided on paper."""

from typing import Any

import pytest
from tests.platform.targets.kubernetes.fake_cluster import PaperCluster, named
from tests.platform.targets.kubernetes.objects import deployment, route

from pilotlight.errors import TimedOut
from pilotlight.k8s import names
from pilotlight.targets.kubernetes.kinds import is_endpoint_ready
from pilotlight.targets.kubernetes.ordered_apply import (
    Rollout,
    backends,
    deadline_s,
    is_observed,
    routes_with_new_backends,
)

OLD = route("iris", ("iris-predictor", 100))
SPLIT = route("iris", ("iris-predictor", 80), ("iris-canary-predictor", 20))


def test_a_route_that_leads_somewhere_new_waits_for_it() -> None:
    assert routes_with_new_backends([SPLIT], [OLD]) == [SPLIT]


def test_a_first_route_and_one_that_only_shifts_or_drops_sides_wait_for_nobody() -> None:
    shifted = route("iris", ("iris-predictor", 50), ("iris-canary-predictor", 50))
    assert routes_with_new_backends([SPLIT], []) == []
    assert routes_with_new_backends([shifted], [SPLIT]) == []
    assert routes_with_new_backends([OLD], [SPLIT]) == []


def test_a_side_without_a_share_and_one_of_another_namespace_are_not_waited_for() -> None:
    idle = route("iris", ("iris-predictor", 100), ("iris-canary-predictor", 0))
    idle["spec"]["rules"][0]["backendRefs"].append({"name": "gateway", "namespace": "system", "weight": 100})
    assert backends(idle) == ["iris-predictor"]


def judged(generation: int, *seen: int) -> dict[str, Any]:
    conditions = [{"type": "Accepted", "observedGeneration": each} for each in seen]
    made = route("iris", ("iris-predictor", 100))
    return {
        **made,
        "metadata": {**made["metadata"], "generation": generation},
        "status": {"parents": [{"conditions": conditions}]},
    }


def test_a_route_is_taken_up_when_every_judgement_is_of_its_present_form() -> None:
    assert is_observed(judged(2, 2, 2))
    assert not is_observed(judged(2, 2, 1))
    assert not is_observed(judged(2))


def test_an_endpoint_is_ready_unless_it_says_otherwise() -> None:
    assert is_endpoint_ready({"conditions": {"ready": True}})
    assert not is_endpoint_ready({"conditions": {"ready": False, "serving": True}})
    assert is_endpoint_ready({}), "the API has an unknown state read as ready"


def test_it_is_waited_as_long_as_the_slowest_side_may_take() -> None:
    slow = deployment("iris-predictor", "iris-predictor-1")
    slow["spec"]["progressDeadlineSeconds"] = 3600
    assert deadline_s([slow, deployment("other", "other-1")]) == 3600
    assert deadline_s([]) == 600


def test_a_service_that_leaves_knative_waits_until_the_names_of_its_services_are_free() -> None:
    metadata = {"labels": {names.LABEL_SERVICE: "iris"}}
    owner = {"apiVersion": "serving.knative.dev/v1", "kind": "Route", "name": "iris", "controller": True}
    mine = named("serving.knative.dev/v1", "Route", "lab", "iris", metadata=metadata)
    theirs = named("v1", "Service", "lab", "iris", metadata={"ownerReferences": [owner]})
    kinds = ("v1/Service", "serving.knative.dev/v1/Route")
    clock = iter(range(100))
    with PaperCluster(mine, theirs, kinds=kinds) as paper:
        cluster = paper.cluster()
        rollout = Rollout(
            cluster, ("lab", "iris"), str, force=False, clock=lambda: float(next(clock)), sleep=lambda _: None
        )
        with pytest.raises(TimedOut, match="Knative Services still exist: iris"):
            rollout.apply([named("v1", "Service", "lab", "iris", metadata=metadata)], ())
        assert cluster.get("serving.knative.dev/v1", "Route", "lab", "iris") is None
