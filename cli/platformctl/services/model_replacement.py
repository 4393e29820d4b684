"""Manifest of a deployed service with another model: what `deploy MODEL` and `canary start NAME MODEL` apply to it.

Access rules, quotas, logs and scaling are the service's, not the model's: a new model must not remove them. Pure.
"""

from collections.abc import Mapping
from typing import Any, Final

from pilotlight.contract import ENV_MODEL_PARAMETER, ENV_TRUST_PICKLE
from pilotlight.errors import UsageError
from pilotlight.k8s.names import RELEASE_ANNOTATIONS
from pilotlight.k8s.quantities import quantity_or_zero

Json = Mapping[str, Any]
_LOCATION: Final = ("storageUri", "storage")
_OF_FORMAT: Final = ("modelFormat", "runtime", "protocolVersion", "args")  # kept for a model of the same format
_OF_MODEL: Final = frozenset({ENV_MODEL_PARAMETER, ENV_TRUST_PICKLE})


def with_model(released: Json, generated: Json) -> dict[str, Any]:
    """Return the manifest of a service with the model of a generated one; all else is as released.

    Raise UsageError for a manifest whose model is not at `spec.predictor.model`.
    """
    metadata, spec = released["metadata"], released.get("spec") or {}
    predictor = spec.get("predictor") or {}
    same_kind = all(released.get(field) == generated[field] for field in ("apiVersion", "kind"))
    if not same_kind or not isinstance(predictor.get("model"), Mapping):
        message = f"{metadata['name']} is deployed from a manifest without spec.predictor.model, which a MODEL replaces"
        raise UsageError(message, "write the model into its manifest: platformctl deploy -f FILE")
    annotations = metadata.get("annotations") or {}
    kept = {name: value for name, value in annotations.items() if name not in RELEASE_ANNOTATIONS}
    others = {name: value for name, value in metadata.items() if name != "annotations"}
    model = _model(predictor["model"], generated["spec"]["predictor"]["model"])
    part = {name: value for name, value in predictor.items() if name != "canaryTrafficPercent"}
    return {
        **released,
        "metadata": {**others, **({"annotations": kept} if kept else {})},
        "spec": {**spec, "predictor": {**part, "model": model}},
    }


def _model(released: Json, generated: Json) -> dict[str, Any]:
    same = released.get("modelFormat", {}).get("name") == generated["modelFormat"]["name"]
    dropped = {*_LOCATION, *(() if same else _OF_FORMAT)}
    kept = {name: value for name, value in released.items() if name not in dropped}
    merged = {**generated, **kept, **{name: generated[name] for name in _LOCATION if name in generated}}
    if "args" in generated:
        merged["args"] = generated["args"]
    named = {each["name"]: each for each in released.get("env") or () if each["name"] not in _OF_MODEL}
    env = [*{**named, **{each["name"]: each for each in generated.get("env") or ()}}.values()]
    merged.pop("env", None)
    resources = _resources(released.get("resources") or {}, generated.get("resources") or {})
    return {**merged, **({"env": env} if env else {}), **({"resources": resources} if resources else {})}


def _resources(released: Json, generated: Json) -> Json:
    """Return the resources of the service, with the memory that the new model needs if that is more."""
    limits, needed = released.get("limits") or {}, (generated.get("limits") or {}).get("memory", 0)
    if not released or "memory" not in limits or quantity_or_zero(needed) <= quantity_or_zero(limits["memory"]):
        return released or generated
    return {**released, "limits": {**limits, "memory": needed}}
