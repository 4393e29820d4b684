"""Documents of the tests as the manifests that `deploy` would apply, and what the embedded target makes of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from pilotlight.plan.types import Current
from pilotlight.release.plan_and_render import Sources, plan_all
from pilotlight.targets.local.manifests.interpret import interpret
from pilotlight.targets.local.manifests.service_spec_types import RevisionSpec

Json = Any
KEY = ("default", "iris")


def document(
    model: Mapping[str, Json] | None = None, annotations: Mapping[str, str] | None = None, raw: bool = False,
    **predictor: Json,
) -> dict[str, Json]:  # fmt: skip
    """KServe's iris with our runtime: by the path of its model, or whatever `predictor` says."""
    mode = {"serving.kserve.io/deploymentMode": "Standard"} if raw else {}
    served = {"modelFormat": {"name": "onnx"}, "protocolVersion": "v2", "storageUri": "/models/iris.onnx"}
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": "iris", "annotations": {**mode, **(annotations or {})}},
        "spec": {"predictor": {"model": {**served, **(model or {})}, **predictor}},
    }


def rendered(
    folder: Path, *documents: Mapping[str, Json], current: Mapping[tuple[str, str], Current] | None = None
) -> list[dict[str, Json]]:
    file = folder / "documents.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    return [dict(manifest.document) for manifest in plan_all(Sources([str(file)]), current=current).manifests()]


def revision(folder: Path, *documents: Mapping[str, Json]) -> RevisionSpec:
    (workload,) = interpret(rendered(folder, *documents)).workloads
    return workload.revision
