"""Fine-tuned weights: merged ones replace the base model's, an adapter is loaded in addition to it.

OME's FineTunedWeight says which by `configuration.merged_weights`. storage.py fetches the adapter. Only engines whose
flags are known here can load one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pilotlight.plan.ledger import DecisionLog
from pilotlight.spec.model import BaseModel, Catalogue, Service

Json = Any
ADAPTERS_DIR: Final = "/mnt/adapters"
# Adapter flags of an engine by a word of its image; `{}` is name=path.
_FLAGS: Final[Mapping[str, tuple[str, ...]]] = {
    "vllm": ("--enable-lora", "--lora-modules", "{}"),
    "sglang": ("--enable-lora", "--lora-paths", "{}"),
}


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter that an engine loads with its base model; requests select it by this model name."""

    name: str
    uri: str
    named_at: str  # path in the document

    @property
    def path(self) -> str:
        return f"{ADAPTERS_DIR}/{self.name}"


def fine_tuned(
    service: Service, model: BaseModel | None, catalogue: Catalogue, log: DecisionLog
) -> tuple[BaseModel | None, Adapter | None]:
    """Return the model to serve and its adapter, if any. The reader rejects more than one set of weights."""
    name, path = service.fine_tuned_weight
    if not name or model is None:
        return model, None
    weights = next((each for each in catalogue.weights if each["metadata"]["name"] == name), None)
    if weights is None:
        log.error("PL309", path, f"no FineTunedWeight is called {name}; add its document to the files or --catalog")
        return model, None
    spec = weights["spec"]
    storage = spec.get("storage") or {}
    uri, base = str(storage.get("storageUri", "")), (spec.get("baseModelRef") or {}).get("name", model.name)
    if base != model.name:
        log.error("PL309", path, f"{name} was tuned from {base}, not from {model.name}")
    elif spec.get("disabled"):
        log.error("PL309", path, f"{name} is disabled")
    elif not uri:
        log.error("PL309", path, f"{name} has no storage.storageUri to fetch it from")
    elif (spec.get("configuration") or {}).get("merged_weights") is True:
        log.decide("", "fine-tuned weights", name, "merged: they are served in place of the base model's")
        # Without the node path, where OME's model agent puts base models only; the Secret's key stays.
        storage = {key: value for key, value in storage.items() if key != "path"}
        return replace(model, storage_uri=uri, storage=storage), None
    else:
        log.decide("", "fine-tuned weights", name, "an adapter, loaded beside the base model")
        return model, Adapter(name, uri, path)
    return model, None


def with_adapter(container: Mapping[str, Json], adapter: Adapter, log: DecisionLog) -> dict[str, Json]:
    """Add the flags that load the adapter, by the engine of the container's image."""
    image = str(container.get("image", ""))
    flags = next((flags for word, flags in _FLAGS.items() if word in image), None)
    if flags is None:
        engines = " or ".join(_FLAGS)
        message = f"{image or 'our predictor'} loads no adapters; use a runtime of {engines}, or merge the weights"
        log.error("PL309", adapter.named_at, message)
        return dict(container)
    args = [flag.format(f"{adapter.name}={adapter.path}") for flag in flags]
    return {**container, "args": [*(container.get("args") or ()), *args]}
