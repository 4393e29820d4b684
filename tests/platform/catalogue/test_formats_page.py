"""docs/reference/formats.md is true: a plan of each cell of its table runs the runtime that it names."""

import io

import pytest
import yaml
from tests.platform.catalogue.formats_page import cell, lacks_image, rows, specs

from pilotlight.catalogue.catalogue import builtin
from pilotlight.contract import is_predictor_image
from pilotlight.plan.support.target_support import TARGETS
from pilotlight.plan.types import Capabilities
from pilotlight.release.plan_and_render import Sources, plan_all
from pilotlight.spec.problems import InvalidDocument

PODS = {runtime.name: runtime.pod for runtime in builtin().runtimes if runtime.group == "kserve"}


@pytest.mark.parametrize("target", TARGETS)
def test_a_plan_of_each_cell_runs_what_it_names(target: str) -> None:
    for row in rows():
        runtime, spec = cell(row, target)
        spec = spec or specs(row)[0]
        model = {"modelFormat": {"name": row.format}, "storageUri": row.uri, "runtime": spec.runtime}
        model |= {"protocolVersion": spec.protocol, **spec.container}
        document = {
            "apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService", "metadata": {"name": "it"},
            "spec": {"predictor": {"minReplicas": 1, "model": {key: value for key, value in model.items() if value}}},
        }  # fmt: skip
        sources = Sources(("-",), stdin=io.StringIO(yaml.safe_dump(document)))
        if not runtime or (runtime == "pilotlight" and lacks_image(row, target)):
            with pytest.raises(InvalidDocument, match="PL390" if runtime else None):
                plan_all(sources, Capabilities(target=target))
            continue
        (plan,) = plan_all(sources, Capabilities(target=target)).plans
        image = plan.workloads[0].template["spec"]["containers"][0]["image"]
        expected = PODS[runtime]["containers"][0]["image"]
        assert is_predictor_image(image) == is_predictor_image(expected), row
        assert is_predictor_image(image) or image.partition(":")[0] == expected.partition(":")[0], row
