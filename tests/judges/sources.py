"""Which schemas judge our manifests, and their one form in the cache: a table from apiVersion and kind to a schema.

Kubernetes' own types come from its OpenAPI document, everything else from CustomResourceDefinitions; KEDA's module
also carries the metadata keys of each trigger type. Prose is left out: five megabytes become two.
"""

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml
from tests.judges.gomodules import GoModule, Unavailable, cache_root, files_of, made_once, say

Json = Any

KUBERNETES: Final = GoModule(
    "k8s.io/kubernetes", "v1.34.4", "h1:Yy6R4QB8C9kJPp25GFqEvX5XQwY5qzKeqD0Xx6oAcmk=",
    ("api/openapi-spec/swagger.json",),
)  # fmt: skip
KNATIVE: Final = GoModule(
    "knative.dev/operator", "v0.42.2", "h1:wgAWYHwoSFmV+wPHCt5dZahHTHLy2VCM4G82PEo9iSc=",
    ("cmd/operator/kodata/knative-serving/1.15.2/1-serving-crds.yaml",),
)  # fmt: skip
KEDA: Final = GoModule(
    "github.com/kedacore/keda/v2", "v2.21.0", "h1:R6z2HZvstK4RLUMxroNACzBj74xGxt3kG59b5Xc+Xps=",
    ("config/crd/bases/keda.sh_", "schema/generated/scalers-schema.json"),
)  # fmt: skip
GATEWAY_API: Final = GoModule(
    "sigs.k8s.io/gateway-api", "v1.4.1", "h1:NPxFutNkKNa8UfLd2CMlEuhIPMQgDQ6DXNKG9sHbJU8=",
    ("config/crd/standard/gateway.networking.k8s.io_httproutes", "config/crd/standard/gateway.networking.k8s.io_ref"),
)  # fmt: skip
PROMETHEUS_OPERATOR: Final = GoModule(
    "github.com/prometheus-operator/prometheus-operator", "v0.85.0", "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=",
    tuple(
        f"example/prometheus-operator-crd-full/monitoring.coreos.com_{kind}"
        for kind in ("servicemonitors", "podmonitors", "prometheusrules")
    ),
)  # fmt: skip
LEADER_WORKER_SET: Final = GoModule(
    "sigs.k8s.io/lws", "v0.9.0", "h1:DcJCgxjjoGOx//QHZkeKpyiblxYq70aCRZNYSfykWyI=",
    ("config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets",),
)  # fmt: skip
INFERENCE_EXTENSION: Final = GoModule(
    "sigs.k8s.io/gateway-api-inference-extension", "v1.5.0", "h1:w9Awt60cmI1vM7Y6N81h8wDCBP0WkmxpdI7GKY0v070=",
    ("config/crd/bases/inference.networking.k8s.io_inferencepools",),
)  # fmt: skip
CRDS: Final = (KNATIVE, GATEWAY_API, PROMETHEUS_OPERATOR, LEADER_WORKER_SET, INFERENCE_EXTENSION)
PINS: Final = (KUBERNETES, KEDA, *CRDS)
FORM: Final = 1  # of the files in the cache; count up when what is written there changes

PROSE: Final = frozenset({"description", "externalDocs", "example", "x-kubernetes-patch-strategy"})


class Sources(NamedTuple):
    definitions: dict[str, Json]  # Kubernetes' types by their long name
    custom: dict[str, Json]  # "keda.sh/v1alpha1 ScaledObject" → the structural schema of its CRD
    triggers: dict[str, list[Json]]  # KEDA trigger type → the parameters it reads


def sources() -> Sources:
    """Everything, from the cache where it is; the first call on a machine fetches it, once, even if in vain."""
    found = _sources()
    if isinstance(found, Unavailable):
        raise found
    return found


@cache
def _sources() -> Sources | Unavailable:
    try:
        return _read()
    except Unavailable as reason:
        return reason


def _read() -> Sources:
    digest = hashlib.sha256(repr((FORM, PINS)).encode()).hexdigest()[:12]
    folder = cache_root() / f"schemas-{digest}"
    if not folder.is_dir():
        with made_once(folder) as filling:
            if filling is not None:
                say("fetching the schemas that judge our manifests; once, in less than two minutes")
                _fill(filling)
    return Sources(*(json.loads((folder / f"{part}.json").read_text()) for part in Sources._fields))


def _fill(folder: Path) -> None:
    swagger = json.loads(files_of(KUBERNETES)["api/openapi-spec/swagger.json"])
    keda = files_of(KEDA)
    scalers = json.loads(keda.pop("schema/generated/scalers-schema.json"))["scalers"]
    custom: dict[str, Json] = {}
    for files in (keda, *map(files_of, CRDS)):
        for text in files.values():
            custom.update(crd_schemas(text))
    parts = Sources(
        without_prose(swagger["definitions"]), custom, {each["type"]: each["parameters"] for each in scalers}
    )
    for name, part in parts._asdict().items():
        (folder / f"{name}.json").write_text(json.dumps(part, separators=(",", ":")))


def crd_schemas(text: bytes | str) -> dict[str, Json]:
    """One schema per version that a CustomResourceDefinition serves."""
    found: dict[str, Json] = {}
    for document in yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        if not document or document.get("kind") != "CustomResourceDefinition":
            continue
        spec = document["spec"]
        for version in spec["versions"]:
            schema = version["schema"]["openAPIV3Schema"]
            found[f"{spec['group']}/{version['name']} {spec['names']['kind']}"] = without_prose(schema)
    return found


def without_prose(node: Json, names: bool = False) -> Json:
    """`names`: the keys are a type's own field names, among which `description` may be one."""
    if isinstance(node, list):
        return [without_prose(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {
        key: without_prose(value, names=key == "properties" and not names)
        for key, value in node.items()
        if names or key not in PROSE
    }
