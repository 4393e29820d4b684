"""Manifests as small as they can be, and what is refused of them."""

from typing import Any

import pytest

from pilotlight.errors import PlatformError
from pilotlight.targets.local.manifests.interpret import interpret

Json = Any


def knative(template: Json = None, **spec: Json) -> dict[str, Json]:
    """A Knative Service as short as one can be."""
    pod = {"containers": [{"image": "pilotlight/predictor:0.1.0"}]}
    labels = {"pilotlight.dev/service": "iris"}
    return {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {"name": "iris-predictor", "namespace": "lab", "labels": labels},
        "spec": {"template": {"spec": pod, **(template or {})}, **spec},
    }


def deployment(container: Json = None, pod: Json = None, **spec: Json) -> dict[str, Json]:
    main = {"name": "main", "image": "pilotlight/predictor:0.1.0", **(container or {})}
    labels = {"pilotlight.dev/service": "iris"}
    template = {"metadata": {"labels": {"a/b": "c"}}, "spec": {"containers": [main], **(pod or {})}}
    metadata = {"name": "iris-engine", "namespace": "lab", "labels": labels}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {"template": template, **spec}}


def container(*companions: dict[str, Json], pod: Json = None, **fields: Json) -> Any:
    return interpret([deployment(fields, pod), *companions]).workloads[0].revision.container


def refusals(*manifests: dict[str, Json]) -> list[str]:
    with pytest.raises(PlatformError) as raised:
        interpret(manifests)
    return str(raised.value).splitlines()
