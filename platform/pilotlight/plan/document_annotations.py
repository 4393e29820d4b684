"""Annotations that planning reads, under the prefixes of OME and KServe, and those that are copied to objects."""

from collections.abc import Mapping
from typing import Final

from pilotlight.k8s.autoscaling_annotations import KNATIVE_AUTOSCALING
from pilotlight.k8s.names import (
    ACCESS_ANNOTATIONS,
    ANNOTATION_FORMULA,
    ANNOTATION_FORMULA_TARGET,
    ANNOTATION_SCHEDULE,
    ANNOTATION_TRIGGERS,
    ANNOTATION_WAKE_BY,
    DOMAIN,
)
from pilotlight.spec.service import Component, Service

DEPLOYMENT_MODE: Final = ("ome.io/deploymentMode", "serving.kserve.io/deploymentMode")
AUTOSCALER_CLASS: Final = ("ome.io/autoscalerClass", "serving.kserve.io/autoscalerClass")
HPA_METRIC: Final = ("ome.io/metrics", "serving.kserve.io/metrics")
HPA_TARGET: Final = ("ome.io/targetUtilizationPercentage", "serving.kserve.io/targetUtilizationPercentage")
TAG_ROUTING: Final = ("ome.io/enable-tag-routing", "serving.kserve.io/enable-tag-routing")
SCRAPING: Final = ("ome.io/enable-prometheus-scraping", "serving.kserve.io/enable-prometheus-scraping")
STORAGE_SECRET: Final = ("serving.kserve.io/storageSecretName",)
STOP: Final = ("serving.kserve.io/stop", "ome.io/stop")

TRIGGERS: Final = ANNOTATION_TRIGGERS
SCHEDULE: Final = ANNOTATION_SCHEDULE
FORMULA: Final = ANNOTATION_FORMULA
FORMULA_TARGET: Final = ANNOTATION_FORMULA_TARGET
WAKE_BY: Final = ANNOTATION_WAKE_BY

# OME's own overrides of a kedaConfig.
KEDA_THRESHOLD: Final = "autoscaling.keda.sh/threshold"
KEDA_OPERATOR: Final = "autoscaling.keda.sh/operator"
KEDA_QUERY: Final = "autoscaling.keda.sh/prometheus.query"
KEDA_ADDRESS: Final = "autoscaling.keda.sh/prometheus.serverAddress"

PROGRESS_DEADLINE: Final = "serving.knative.dev/progress-deadline"
ROLLOUT_DURATION: Final = "serving.knative.dev/rollout-duration"

# Set on Knative's Service object, not on its template.
ON_SERVICE_OBJECT: Final = (ROLLOUT_DURATION, "serving.knative.openshift.io/enablePassthrough")

_CONSUMED: Final = frozenset(
    (*DEPLOYMENT_MODE, *AUTOSCALER_CLASS, *HPA_METRIC, *HPA_TARGET, *TAG_ROUTING, *STOP, PROGRESS_DEADLINE,
     *ON_SERVICE_OBJECT)
)  # fmt: skip
_CONSUMED_PREFIXES: Final = (
    KNATIVE_AUTOSCALING, "autoscaling.keda.sh/", f"{DOMAIN}/", "kubectl.kubernetes.io/", "internal.serving.kserve.io/",
    "meta.helm.sh/",
)  # fmt: skip


def first(keys: tuple[str, ...], *maps: Mapping[str, str]) -> tuple[str, str]:
    """Return key and value of the first map that has one of the keys, else two empty strings."""
    for annotations in maps:
        for key in keys:
            if key in annotations:
                return key, annotations[key]
    return "", ""


def lookup(service: Service, component: Component, *keys: str) -> tuple[str, str]:
    """Return key and value of an annotation; the component's wins over the service's."""
    return first(keys, component.annotations, service.annotations)


def path_of(component: Component, key: str) -> str:
    if key in component.annotations:
        return f"spec.{component.role}.annotations.{key}"
    return f"metadata.annotations.{key}"


def for_workload_objects(annotations: Mapping[str, str]) -> dict[str, str]:
    """Return the annotations that are copied to workload objects: access rules and rate limits of the gateway."""
    return {key: annotations[key] for key in ACCESS_ANNOTATIONS if key in annotations}


def for_pods(annotations: Mapping[str, str]) -> dict[str, str]:
    """Return the annotations that are copied to pods: all that planning does not consume."""
    return {
        key: value
        for key, value in annotations.items()
        if key not in _CONSUMED and not key.startswith(_CONSUMED_PREFIXES)
    }
