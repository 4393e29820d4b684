"""The chart's simple values and the planner decide alike: the same model is served by the same pod."""

from pathlib import Path
from typing import Any

import pytest
from tests.helm.conftest import Release

from pilotlight.catalogue.catalogue import builtin
from pilotlight.plan import plan
from pilotlight.render import render
from pilotlight.spec.load_documents import load

URI = "s3://models/iris"
DOCUMENT = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: iris
  annotations: {{serving.kserve.io/deploymentMode: {mode}}}
spec:
  predictor:
    minReplicas: {least}
    maxReplicas: 3
    scaleTarget: {target}
    model: {{modelFormat: {{name: onnx}}, storageUri: "s3://models/iris"}}
"""
# What the chart says and the planner leaves to Kubernetes, or the other way round.
OWN_WAY = {"name", "imagePullPolicy", "resources"}


def pod_of(objects: list[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The pod's fields without its containers, and its only container with lists by name."""
    (template,) = [each["spec"]["template"] for each in objects if "template" in each.get("spec", {})]
    pod = {
        key: value for key, value in template["spec"].items() if key not in ("containers", "topologySpreadConstraints")
    }
    pod["volumes"] = by_name(pod["volumes"])
    (container,) = template["spec"]["containers"]
    container = {key: value for key, value in container.items() if key not in OWN_WAY}
    container |= {key: by_name(container[key]) for key in ("env", "volumeMounts", "ports")}
    container["env"].pop("PILOTLIGHT_REVISION", None)  # a simple release does not name its revisions
    for port in container["ports"].values():
        port.pop("protocol", None)
    return pod, container


def by_name(items: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {item["name"]: item for item in items}


@pytest.mark.parametrize(
    ("simple", "mode", "least", "target"), [("serverless", "Knative", 0, 10), ("raw", "Standard", 1, 80)]
)
def test_a_simple_release_runs_the_pod_that_would_be_planned(
    simple: str, mode: str, least: int, target: int, release: Release, tmp_path: Path
) -> None:
    file = tmp_path / "service.yaml"
    file.write_text(DOCUMENT.format(mode=mode, least=least, target=target))
    (service,) = load([str(file)]).services
    objects = [manifest.document for manifest in render(plan(service, builtin()))]
    assert pod_of(release("inference-service", mode=simple, model={"storageUri": URI})) == pod_of(objects)
