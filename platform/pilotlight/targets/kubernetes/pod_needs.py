"""Which pods manifests would make, and what those pods mention: accounts, secrets, settings, claims, devices. Pure.

preflight.py asks the cluster for each of them before anything is written.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pilotlight.contract import ENV_PARK_MEMORY
from pilotlight.quantities import is_gpu, number

Json = Any
Document = Mapping[str, Json]
Reference = tuple[str, str]  # kind and name, in the pod's namespace


@dataclass(frozen=True, slots=True)
class Pod:
    """The pod that an object makes; `owner` is written as `Deployment iris-predictor`."""

    owner: str
    namespace: str
    spec: Document


def pods(manifests: Iterable[Document]) -> Iterator[Pod]:
    for document in manifests:
        metadata, spec = document["metadata"], document.get("spec") or {}
        for template in _templates(spec):
            found = template.get("spec") or {}
            if found.get("containers"):
                yield Pod(f"{document['kind']} {metadata['name']}", metadata.get("namespace", ""), found)


def _templates(spec: Document) -> Iterator[Document]:
    """Of a Deployment, StatefulSet or Knative Service; of a LeaderWorkerSet; of a RayCluster."""
    group = spec.get("leaderWorkerTemplate") or {}
    ray = [spec.get("headGroupSpec") or {}, *(spec.get("workerGroupSpecs") or ())]
    wanted = (spec.get("template"), group.get("leaderTemplate"), group.get("workerTemplate"))
    yield from (each for each in (*wanted, *(part.get("template") for part in ray)) if each)


def mentioned(spec: Document) -> Iterator[Reference]:
    """What must exist before such a pod can start; what it calls optional need not."""
    if spec.get("serviceAccountName"):
        yield "ServiceAccount", spec["serviceAccountName"]
    yield from (("Secret", each["name"]) for each in spec.get("imagePullSecrets") or ())
    for volume in spec.get("volumes") or ():
        yield from _in_volume(volume)
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        yield from _in_container(container)


def _in_volume(volume: Document) -> Iterator[Reference]:
    if claim := volume.get("persistentVolumeClaim"):
        yield "PersistentVolumeClaim", claim["claimName"]
    for source in (volume, *((volume.get("projected") or {}).get("sources") or ())):
        yield from _needed("Secret", source.get("secret"))
        yield from _needed("ConfigMap", source.get("configMap"))


def _in_container(container: Document) -> Iterator[Reference]:
    for source in container.get("envFrom") or ():
        yield from _needed("Secret", source.get("secretRef"))
        yield from _needed("ConfigMap", source.get("configMapRef"))
    for variable in container.get("env") or ():
        source = variable.get("valueFrom") or {}
        yield from _needed("Secret", source.get("secretKeyRef"))
        yield from _needed("ConfigMap", source.get("configMapKeyRef"))


def _needed(kind: str, written: Document | None) -> Iterator[Reference]:
    """A volume spells the name of its Secret otherwise than everybody else."""
    name = (written or {}).get("secretName") or (written or {}).get("name")
    if written and name and not written.get("optional"):
        yield kind, str(name)


def devices(spec: Document) -> set[str]:
    """Kinds of GPUs that it asks for."""
    resources = [container.get("resources") or {} for container in spec["containers"]]
    asked = [part.get(kind) or {} for part in resources for kind in ("limits", "requests")]
    return {name for each in asked for name, count in each.items() if is_gpu(name) and number(count) > 0}


def parks(spec: Document) -> bool:
    """Whether its predictor gives GPU memory back while nobody asks."""
    variables = [each for container in spec["containers"] for each in container.get("env") or ()]
    return any(each["name"] == ENV_PARK_MEMORY and each.get("value") not in (None, "", "0", "0%") for each in variables)
