"""Fine-tuned weights of a service: merged ones stand in for the base model, an adapter is loaded beside it.

OME's FineTunedWeight says which by `configuration.merged_weights`. Read by runtime_choice.py; storage.py brings the
adapter's bytes. Only engines whose flags are known here get an adapter; for others it would lie there unused.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pilotlight.plan.ledger import Ledger
from pilotlight.spec.model import BaseModel, Catalogue, Service

Json = Any
ADAPTERS_DIR: Final = "/mnt/adapters"
# By a word of the image; `{}` is name=path.
_FLAGS: Final[Mapping[str, tuple[str, ...]]] = {
    "vllm": ("--enable-lora", "--lora-modules", "{}"),
    "sglang": ("--enable-lora", "--lora-paths", "{}"),
}


@dataclass(frozen=True, slots=True)
class Adapter:
    """Weights that an engine loads beside its model; asked for by this name as a model."""

    name: str
    uri: str
    named_at: str  # the path of the document that names it

    @property
    def path(self) -> str:
        return f"{ADAPTERS_DIR}/{self.name}"


def fine_tuned(
    service: Service, model: BaseModel | None, catalogue: Catalogue, ledger: Ledger
) -> tuple[BaseModel | None, Adapter | None]:
    """The model whose bytes are served, and the adapter beside it. More than one set was refused while reading."""
    name, path = service.tuned
    if not name or model is None:
        return model, None
    found = next((each for each in catalogue.weights if each["metadata"]["name"] == name), None)
    if found is None:
        ledger.error("PL309", path, f"no FineTunedWeight is called {name}; add its document to the files or --catalog")
        return model, None
    spec = found["spec"]
    uri, base = _uri(spec), (spec.get("baseModelRef") or {}).get("name", model.name)
    if base != model.name:
        ledger.error("PL309", path, f"{name} was tuned from {base}, not from {model.name}")
    elif spec.get("disabled"):
        ledger.error("PL309", path, f"{name} is disabled")
    elif not uri:
        ledger.error("PL309", path, f"{name} has no storage.storageUri to fetch it from")
    elif (spec.get("configuration") or {}).get("merged_weights") is True:
        ledger.decide("", "fine-tuned weights", name, "merged: they are served in place of the base model's")
        return replace(model, storage_uri=uri, storage=_without_path(spec)), None
    else:
        ledger.decide("", "fine-tuned weights", name, "an adapter, loaded beside the base model")
        return model, Adapter(name, uri, path)
    return model, None


def _uri(spec: Mapping[str, Json]) -> str:
    return str((spec.get("storage") or {}).get("storageUri", ""))


def _without_path(spec: Mapping[str, Json]) -> dict[str, Json]:
    """OME's model agent puts base models on nodes, not weights; what remains is the key of a Secret."""
    return {key: value for key, value in spec["storage"].items() if key != "path"}


def with_adapter(container: Mapping[str, Json], adapter: Adapter, ledger: Ledger) -> dict[str, Json]:
    """The container told to load it, by the flags of the engine that its image is."""
    image = str(container.get("image", ""))
    flags = next((flags for word, flags in _FLAGS.items() if word in image), None)
    if flags is None:
        engines = " or ".join(_FLAGS)
        message = f"{image or 'our predictor'} loads no adapters; use a runtime of {engines}, or merge the weights"
        ledger.error("PL309", adapter.named_at, message)
        return dict(container)
    told = [flag.format(f"{adapter.name}={adapter.path}") for flag in flags]
    return {**container, "args": [*(container.get("args") or ()), *told]}
