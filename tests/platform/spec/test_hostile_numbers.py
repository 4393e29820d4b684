"""Numbers that no machine has: one located error, no traceback."""

from contextlib import suppress

import pytest
from tests.platform.controller.documents import Json, annotated, iris

from pilotlight.release.plan_and_render import Sources, plan_all
from pilotlight.spec.problems import InvalidDocument, SourceLocation
from pilotlight.spec.yaml_nodes import node_of

HUGE = "9" * 400
RUNNER: Json = {"apiVersion": "ome.io/v1beta1", "kind": "InferenceService", "metadata": {"name": "llama"}}


def ome(**engine: Json) -> Json:
    return {**RUNNER, "spec": {"model": {"name": "llama-3-3-70b-instruct"}, "engine": engine}}


@pytest.mark.parametrize(
    ("document", "field"),
    [
        (ome(leader={}, worker={"size": 1e300}), "spec.engine.worker.size"),
        (annotated(iris(), **{"model-size": HUGE}), "pilotlight.dev/model-size"),
        (annotated(iris(), **{"model-size": "1e308Gi"}), "pilotlight.dev/model-size"),
        (iris(minReplicas=10**30), "spec.predictor.minReplicas"),
    ],
)  # fmt: skip
def test_a_number_that_no_machine_has_is_a_located_error(document: Json, field: str) -> None:
    node = node_of(document, SourceLocation("a.yaml"))
    with pytest.raises(InvalidDocument) as raised:
        plan_all(Sources((), objects=[node]))
    assert any(field in each.path for each in raised.value.problems if each.severity == "error"), raised.value


@pytest.mark.parametrize("amount", [HUGE, "1e99999999999999999999", "1e-99999999999999Gi", "1e308", f"{HUGE}Gi"])
@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "memory", "cpu"])
def test_a_quantity_that_no_machine_has_is_left_to_the_api_server(resource: str, amount: str) -> None:
    limits = {"limits": {resource: amount}}
    node = node_of(ome(runner={"name": "a", "resources": limits}), SourceLocation("a.yaml"))
    with suppress(InvalidDocument):
        plan_all(Sources((), objects=[node]))
