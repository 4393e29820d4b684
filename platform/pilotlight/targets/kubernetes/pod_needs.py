"""Pod templates of manifests and what they reference: accounts, secrets, ConfigMaps, claims, GPUs. Pure.

preflight.py checks that each of them exists before anything is written.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pilotlight.contract import ENV_PARK_MEMORY
from pilotlight.quantities import is_gpu, quantity_or_zero

Json = Any
Document = Mapping[str, Json]
Reference = tuple[str, str]  # kind and name, in the pod's namespace


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """Pod template of an object; `owner` is `Deployment iris-predictor`."""

    owner: str
    namespace: str
    spec: Document


def pod_templates(manifests: Iterable[Document]) -> Iterator[PodTemplate]:
    for document in manifests:
        metadata, spec = document["metadata"], document.get("spec") or {}
        for template in _templates(spec):
            pod_spec = template.get("spec") or {}
            if pod_spec.get("containers"):
                yield PodTemplate(f"{document['kind']} {metadata['name']}", metadata.get("namespace", ""), pod_spec)


def _templates(spec: Document) -> Iterator[Document]:
    """Yield the templates of a Deployment, StatefulSet, Knative Service, LeaderWorkerSet or RayCluster."""
    group = spec.get("leaderWorkerTemplate") or {}
    ray = [spec.get("headGroupSpec") or {}, *(spec.get("workerGroupSpecs") or ())]
    wanted = (spec.get("template"), group.get("leaderTemplate"), group.get("workerTemplate"))
    yield from (each for each in (*wanted, *(part.get("template") for part in ray)) if each)


def referenced_objects(spec: Document) -> Iterator[Reference]:
    """Yield the objects that must exist before such a pod can start, without optional ones."""
    if spec.get("serviceAccountName"):
        yield "ServiceAccount", spec["serviceAccountName"]
    yield from (("Secret", each["name"]) for each in spec.get("imagePullSecrets") or ())
    for volume in spec.get("volumes") or ():
        yield from _volume_references(volume)
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        yield from _container_references(container)


def _volume_references(volume: Document) -> Iterator[Reference]:
    if claim := volume.get("persistentVolumeClaim"):
        yield "PersistentVolumeClaim", claim["claimName"]
    for source in (volume, *((volume.get("projected") or {}).get("sources") or ())):
        yield from _needed("Secret", source.get("secret"))
        yield from _needed("ConfigMap", source.get("configMap"))


def _container_references(container: Document) -> Iterator[Reference]:
    for source in container.get("envFrom") or ():
        yield from _needed("Secret", source.get("secretRef"))
        yield from _needed("ConfigMap", source.get("configMapRef"))
    for variable in container.get("env") or ():
        source = variable.get("valueFrom") or {}
        yield from _needed("Secret", source.get("secretKeyRef"))
        yield from _needed("ConfigMap", source.get("configMapKeyRef"))


def _needed(kind: str, written: Document | None) -> Iterator[Reference]:
    """Yield a non-optional reference; volumes use `secretName` instead of `name`."""
    name = (written or {}).get("secretName") or (written or {}).get("name")
    if written and name and not written.get("optional"):
        yield kind, str(name)


def gpu_resources(spec: Document) -> set[str]:
    """Return the GPU resources that the pod requests."""
    resources = [container.get("resources") or {} for container in spec["containers"]]
    amounts = [part.get(kind) or {} for part in resources for kind in ("limits", "requests")]
    return {name for each in amounts for name, count in each.items() if is_gpu(name) and quantity_or_zero(count) > 0}


def parks(spec: Document) -> bool:
    """Whether its predictor parks: frees GPU memory while it gets no requests."""
    variables = [each for container in spec["containers"] for each in container.get("env") or ()]
    return any(each["name"] == ENV_PARK_MEMORY and each.get("value") not in (None, "", "0", "0%") for each in variables)
