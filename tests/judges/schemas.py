"""Judges one manifest: `validate(manifest)` says what an API server, or KEDA, would find wrong with it.

Structural schemas leave unknown fields alone; here they are errors, as under `kubectl apply --validate=strict`. Rules
that a CRD writes in CEL are not evaluated. Where no Go module carries a schema, one of our own stands in (own/).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import extend
from referencing import Registry
from referencing.jsonschema import DRAFT202012
from tests.judges.rules import broken_rules
from tests.judges.sources import sources

Json = Any
OWN: Final = Path(__file__).parent / "own"
KNATIVE_SERVICE: Final = "serving.knative.dev/v1 Service"
SCALED_OBJECT: Final = "keda.sh/v1alpha1 ScaledObject"
POD_SPEC: Final = "io.k8s.api.core.v1.PodSpec"
OBJECT_META: Final = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
QUANTITY: Final = r"^[+-]?(\d+|\d+\.\d*|\.\d+)(([KMGTPE]i)|[numkMGTPE]|([eE][+-]?\d+))?$"

# Types that one JSON type cannot describe.
SPECIAL: Final[Mapping[str, Json]] = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {"type": ["string", "number"], "pattern": QUANTITY},
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": {"type": ["string", "integer"]},
}
# Fields that Knative adds to a pod's, within spec.template.spec.
KNATIVE_ONLY: Final = frozenset(
    {"containerConcurrency", "timeoutSeconds", "responseStartTimeoutSeconds", "idleTimeoutSeconds"}
)
# Volumes that Knative learnt after the version whose CRD judges here; each is behind a feature flag of its own, which
# plan() names among the requirements. Kubernetes' schema judges what is in them.
KNATIVE_LATER: Final = ("csi", "ephemeral", "hostPath", "image")


def validate(manifest: Mapping[str, Json]) -> list[str]:
    """Each mistake as `path: what is wrong`; none: the manifest would be taken."""
    title = f"{manifest.get('apiVersion')} {manifest.get('kind')}"
    validator = _validators().get(title)
    if validator is None:
        return [f"no schema judges {title}"]
    found = [_sentence(error) for error in validator.iter_errors(manifest)]
    if found:
        return found
    if title == KNATIVE_SERVICE:
        found += _knative_pod(manifest["spec"].get("template", {}).get("spec", {}))
    if title == SCALED_OBJECT:
        found += _triggers(manifest["spec"]["triggers"])
    return found + broken_rules(manifest)


def tightened(schema: Json) -> Json:
    """A structural schema as strict JSON Schema."""
    if not isinstance(schema, dict):
        return schema
    node = {key: _part(key, value) for key, value in schema.items()}
    if "properties" in node and not node.get("x-kubernetes-preserve-unknown-fields"):
        node.setdefault("additionalProperties", False)
    if node.get("x-kubernetes-int-or-string"):
        node["type"] = ["integer", "string"]
    if node.get("nullable") and isinstance(node.get("type"), str):
        node["type"] = [node["type"], "null"]
    return node


def _part(key: str, value: Json) -> Json:
    """anyOf, allOf, oneOf and not repeat only some properties: nothing in them closes an object."""
    if key == "properties":
        return {name: tightened(child) for name, child in value.items()}
    if key in ("items", "additionalProperties"):
        return tightened(value)
    if key == "$ref":
        return value.replace("#/definitions/", "kubernetes:")
    return value


def _unique_keys(_: Json, keys: Sequence[str], items: Json, schema: Json) -> Iterator[ValidationError]:
    """An API server merges such lists by these keys and refuses two items that share them."""
    defaults = {"protocol": "TCP"}
    seen: set[str] = set()
    for item in items if isinstance(items, list) else []:
        identity = json.dumps([item.get(key, defaults.get(key)) for key in keys])
        if identity in seen:
            yield ValidationError(f"two items have the same {', '.join(keys)}: {identity}")
        seen.add(identity)


_Validator: Final = extend(Draft202012Validator, {"x-kubernetes-list-map-keys": _unique_keys})


@cache
def _registry() -> Registry[Json]:
    types = {name: SPECIAL.get(name) or tightened(schema) for name, schema in sources().definitions.items()}
    resource = DRAFT202012.create_resource
    return Registry().with_resources((f"kubernetes:{name}", resource(each)) for name, each in types.items())


@cache
def _validators() -> Mapping[str, Any]:
    """By apiVersion and kind, as in `apps/v1 Deployment`."""
    found: dict[str, Json] = {}
    for name, schema in sources().definitions.items():
        for kind in schema.get("x-kubernetes-group-version-kind", []):
            version = "/".join(filter(None, (kind["group"], kind["version"])))
            found[f"{version} {kind['kind']}"] = {"$ref": f"kubernetes:{name}", "required": ["metadata"]}
    own = (json.loads(path.read_text()) for path in sorted(OWN.glob("*.json")))
    custom = {**sources().custom, **{schema["title"]: schema for schema in own}}
    for title, schema in custom.items():
        root = tightened(schema)
        if title == KNATIVE_SERVICE:
            _allow_later_volumes(root)
        root["properties"]["metadata"] = {"$ref": f"kubernetes:{OBJECT_META}"}
        found[title] = {**root, "required": sorted({*root.get("required", []), "metadata"})}
    return {title: _Validator(schema, registry=_registry()) for title, schema in found.items()}


def _allow_later_volumes(root: Json) -> None:
    template = root["properties"]["spec"]["properties"]["template"]["properties"]
    volumes = template["spec"]["properties"]["volumes"]["items"]["properties"]
    for source in KNATIVE_LATER:
        volumes.setdefault(source, {"type": "object"})


def _sentence(error: ValidationError) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
    message = error.message if len(error.message) < 300 else f"{error.message[:300]}…"
    return f"{path.lstrip('.') or 'manifest'}: {message}"


def _knative_pod(spec: Mapping[str, Json]) -> list[str]:
    """Knative's own schema leaves open what its feature flags guard; Kubernetes' has the rest. Names are optional."""
    pod = {key: value for key, value in spec.items() if key not in KNATIVE_ONLY}
    pod["containers"] = [{"name": f"unnamed-{at}", **each} for at, each in enumerate(pod.get("containers", []))]
    validator = _Validator({"$ref": f"kubernetes:{POD_SPEC}"}, registry=_registry())
    return [f"spec.template.spec.{_sentence(error)}" for error in validator.iter_errors(pod)]


def _triggers(triggers: Sequence[Mapping[str, Json]]) -> list[str]:
    """KEDA ignores keys that it does not know; `external` scalers read keys of their own."""
    found = []
    for index, trigger in enumerate(triggers):
        where, kind, metadata = f"spec.triggers[{index}]", trigger.get("type"), trigger.get("metadata", {})
        parameters = sources().triggers.get(str(kind))
        if parameters is None:
            found.append(f"{where}.type: KEDA has no trigger {kind!r}")
            continue
        known = {each["name"] for each in parameters if each.get("metadataVariableReadable")}
        needed = {
            each["name"]
            for each in parameters
            if each["name"] in known and not each.get("optional") and "default" not in each
        }
        extra = set() if str(kind).startswith("external") else metadata.keys() - known
        found += [f"{where}.metadata.{key}: {kind} does not read it" for key in sorted(extra)]
        found += [f"{where}.metadata: {kind} needs {key}" for key in sorted(needed - metadata.keys())]
    return found
