"""What an API server refuses though the schema allows it: names, labels, and references within one object.

Each rule is a function from a manifest to the mistakes that it finds, in one table; `validate` asks them after the
schema, so that the shape they rely on is there.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

Json = Any
Rule = Callable[[Mapping[str, Json]], Iterator[str]]

LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
SERVICE_NAME: Final = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
LABEL_VALUE: Final = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
QUALIFIED: Final = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
PORT_NAME: Final = re.compile(r"(?=.*[a-z])(?!.*--)[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?")
# Objects whose name becomes a DNS label, or a label's value on their pods.
LABELS_BY_NAME: Final = frozenset({"Namespace", "StatefulSet", "LeaderWorkerSet", "RayCluster"})


def broken_rules(manifest: Mapping[str, Json]) -> list[str]:
    return [mistake for rule in RULES for mistake in rule(manifest)]


def name_fits_its_kind(manifest: Mapping[str, Json]) -> Iterator[str]:
    kind, name = manifest["kind"], str(manifest["metadata"].get("name", ""))
    pattern = SERVICE_NAME if kind == "Service" else LABEL if kind in LABELS_BY_NAME else SUBDOMAIN
    if not pattern.fullmatch(name):
        yield f"metadata.name: {name!r} is no name of a {kind}"


def labels_are_labels(manifest: Mapping[str, Json]) -> Iterator[str]:
    for path, metadata in metadata_of(manifest):
        for key, value in (metadata.get("labels") or {}).items():
            if not QUALIFIED.fullmatch(key) or not LABEL_VALUE.fullmatch(value):
                yield f"{path}.labels: {key}={value!r} is no label"
        for key in metadata.get("annotations") or {}:
            if not QUALIFIED.fullmatch(key.lower()):
                yield f"{path}.annotations: {key!r} is no annotation's name"


def selector_finds_its_own_pods(manifest: Mapping[str, Json]) -> Iterator[str]:
    if manifest["kind"] not in ("Deployment", "StatefulSet"):
        return
    wanted = manifest["spec"]["selector"].get("matchLabels", {})
    labels = manifest["spec"]["template"].get("metadata", {}).get("labels", {})
    if not wanted or wanted.items() - labels.items():
        yield f"spec.selector: {wanted} does not find pods with the labels {labels}"


def a_container_has_a_name_of_its_own(manifest: Mapping[str, Json]) -> Iterator[str]:
    for path, pod in pods_of(manifest):
        names = Counter(str(each["name"]) for each in containers_of(pod) if each.get("name"))
        yield from (f"{path}: {count} containers are called {name}" for name, count in names.items() if count > 1)
        yield from (f"{path}: {name!r} is no name of a container" for name in names if not LABEL.fullmatch(name))


def mounts_have_a_volume(manifest: Mapping[str, Json]) -> Iterator[str]:
    claims = {each["metadata"]["name"] for each in manifest.get("spec", {}).get("volumeClaimTemplates", [])}
    for path, pod in pods_of(manifest):
        volumes = claims | {each["name"] for each in pod.get("volumes", [])}
        for container in containers_of(pod):
            mounts = {each["name"] for each in container.get("volumeMounts", [])}
            yield from (f"{path}: {name} is mounted but no volume" for name in sorted(mounts - volumes))


def ports_have_short_names(manifest: Mapping[str, Json]) -> Iterator[str]:
    for path, pod in pods_of(manifest):
        for container in containers_of(pod):
            names = [port["name"] for port in container.get("ports", []) if port.get("name")]
            yield from (f"{path}: {name!r} is no name of a port" for name in names if not PORT_NAME.fullmatch(name))
            if len(set(names)) < len(names):
                yield f"{path}: two ports of {container.get('name')} have one name"


def limits_cover_requests(manifest: Mapping[str, Json]) -> Iterator[str]:
    """Only for GPUs, which cannot be overcommitted: request and limit are one number."""
    for path, pod in pods_of(manifest):
        for container in containers_of(pod):
            resources = container.get("resources", {})
            for key, value in resources.get("requests", {}).items():
                if "/" in key and str(resources.get("limits", {}).get(key)) != str(value):
                    yield f"{path}: {key} is requested as {value} and not limited to the same"


def containers_of(pod: Mapping[str, Json]) -> Iterator[Mapping[str, Json]]:
    yield from pod.get("initContainers", [])
    yield from pod.get("containers", [])


def templates_of(node: Json, path: str = "spec") -> Iterator[tuple[str, Mapping[str, Json]]]:
    """Every pod template, wherever a kind keeps it: under a key that ends in `template`, with containers."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        if str(key).lower().endswith("template") and "containers" in value.get("spec", {}):
            yield f"{path}.{key}", value
        else:
            yield from templates_of(value, f"{path}.{key}")


def pods_of(manifest: Mapping[str, Json]) -> Iterator[tuple[str, Mapping[str, Json]]]:
    for path, template in templates_of(manifest.get("spec", {})):
        yield f"{path}.spec", template["spec"]


def metadata_of(manifest: Mapping[str, Json]) -> Iterator[tuple[str, Mapping[str, Json]]]:
    yield "metadata", manifest["metadata"]
    for path, template in templates_of(manifest.get("spec", {})):
        yield f"{path}.metadata", template.get("metadata", {})


RULES: Final[tuple[Rule, ...]] = (
    name_fits_its_kind, labels_are_labels, selector_finds_its_own_pods, a_container_has_a_name_of_its_own,
    mounts_have_a_volume, ports_have_short_names, limits_cover_requests,
)  # fmt: skip
