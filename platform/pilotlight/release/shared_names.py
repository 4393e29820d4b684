"""Model names at the one `/v1` that several services claim: a deploy warns of them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pilotlight.k8s.adapters import adapters_of
from pilotlight.k8s.names import ANNOTATION_MODEL_NAMES, model_names
from pilotlight.spec.problems import Problem

if TYPE_CHECKING:
    from pilotlight.k8s.manifest import Manifest
    from pilotlight.spec.service import Service
    from pilotlight.targets.target import Key, Target

PATH = f"metadata.annotations.{ANNOTATION_MODEL_NAMES}"


def names_of(manifests: "Iterable[Manifest]") -> dict[str, int]:
    """Return the names of a service with their rank: 0 for its own, 1 for aliases and adapters."""
    ranks: dict[str, int] = {}
    for manifest in manifests:
        annotations = (manifest.document.get("metadata") or {}).get("annotations") or {}
        for index, name in enumerate(model_names(annotations)):
            ranks.setdefault(name, min(index, 1))
        for adapter in adapters_of(manifest.document):
            ranks.setdefault(adapter.name, 1)
    return ranks


def shared_names(
    planned: "Mapping[Key, Sequence[Manifest]]", services: "Iterable[Service]", target: "Target"
) -> Iterator[Problem]:
    """Yield a warning for each name that another service of the namespace has, with the one that it reaches."""
    ranks = {key: names_of(manifests) for key, manifests in planned.items()}
    for namespace in {key[0] for key, names in ranks.items() if names}:
        others = [(each.namespace, each.name) for each in target.list(namespace)]
        ranks |= {key: names_of(target.live(key)) for key in others if key not in ranks}
    for service in services:
        key = (service.namespace, service.name)
        for name in ranks[key]:
            claims = sorted((names[name], each) for each, names in ranks.items() if each[0] == key[0] and name in names)
            if len(claims) > 1:
                rivals = ", ".join("/".join(each) for _, each in claims if each != key)
                message = f"{name} is a name of {rivals} too: at /v1 it reaches {'/'.join(claims[0][1])}; rename one"
                yield Problem("PL391", service.location(PATH), PATH, message, "warning")
