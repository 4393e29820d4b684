"""LoRA adapters of a component: which are served, whether they fit their base model, and the engine's flags for them.

An engine that loads adapters while it runs gets none at its start on this machine: the control process loads them, so
that a deploy of other adapters is no new revision (targets/local/control/adapters.py).
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from pilotlight.catalogue.adapter_files import ADAPTER_CONFIG
from pilotlight.catalogue.engine_programs import AdapterSupport, adapter_support
from pilotlight.k8s.adapters import Adapter
from pilotlight.k8s.model_pins import is_local, local_path
from pilotlight.plan.component_context import RuntimeChoice
from pilotlight.plan.types import ADAPTERS_DIR, DecisionLog, PlannedAdapter
from pilotlight.spec.service import AdapterReference, BaseModel, Catalogue, ModelFolder, Service

Json = Any
MIN_RANK, UNKNOWN_RANK = 16, 64
MIN_BATCHED, MAX_BATCHED = 4, 16  # adapters in one batch, for which an engine reserves memory
_DOWN: Final = ".lora_A.weight"  # from a module's inputs to the rank
# Modules whose input is the hidden state, of most architectures.
_HIDDEN_INPUT: Final = ("q_proj", "k_proj", "v_proj", "qkv_proj", "gate_proj", "up_proj", "gate_up_proj")


def decide_adapters(
    service: Service, model: BaseModel | None, catalogue: Catalogue, log: DecisionLog
) -> tuple[BaseModel | None, tuple[PlannedAdapter, ...]]:
    """Return the model to serve and its adapters: merged weights replace the base model's."""
    adapters: list[PlannedAdapter] = []
    for reference in service.adapters if model is not None else ():
        assert model is not None
        uri, rank = reference.uri, 0
        if not uri:
            weights = _weights(reference, model, catalogue, log)
            if weights is None:
                continue
            storage = weights.get("storage") or {}
            uri = str(storage["storageUri"])
            if (weights.get("configuration") or {}).get("merged_weights") is True:
                return _merged(service, reference, model, storage, log)
            rank = _number((weights.get("hyperParameters") or {}).get("rank"))
        folder = catalogue.folders.get(uri)
        if folder is not None:
            rank = _check_fit(reference, folder, model, catalogue, log)
        log.decide("", "adapter", reference.name, "loaded with the base model")
        adapters.append(PlannedAdapter(reference.name, uri, reference.path, rank))
    return model, tuple(adapters)


def _weights(
    reference: AdapterReference, model: BaseModel, catalogue: Catalogue, log: DecisionLog
) -> Mapping[str, Json] | None:
    """Return the spec of a FineTunedWeight; None with an error if it cannot be served."""
    name, path = reference.name, reference.path
    document = next((each for each in catalogue.weights if each["metadata"]["name"] == name), None)
    if document is None:
        log.error("PL309", path, f"unknown FineTunedWeight {name}; add its manifest to the files or --catalog")
        return None
    spec: Mapping[str, Json] = document["spec"]
    base = (spec.get("baseModelRef") or {}).get("name", model.name)
    if base != model.name:
        log.error("PL309", path, f"{name} was tuned from {base}, not from {model.name}")
    elif spec.get("disabled"):
        log.error("PL309", path, f"{name} is disabled")
    elif not (spec.get("storage") or {}).get("storageUri"):
        log.error("PL309", path, f"{name} has no storage.storageUri to fetch it from")
    else:
        return spec
    return None


def _merged(
    service: Service, reference: AdapterReference, model: BaseModel, storage: Mapping[str, Json], log: DecisionLog
) -> tuple[BaseModel, tuple[PlannedAdapter, ...]]:
    if len(service.adapters) > 1:
        message = f"{reference.name} has merged_weights, which replace the model; name it alone"
        log.error("PL309", reference.path, message)
    log.decide("", "fine-tuned weights", reference.name, "merged: they replace the base model's")
    # Without the node path, where OME's model agent puts base models only; the Secret's key stays.
    kept = {key: value for key, value in storage.items() if key != "path"}
    return replace(model, storage_uri=str(storage["storageUri"]), storage=kept), ()


def _check_fit(
    reference: AdapterReference, folder: ModelFolder, model: BaseModel, catalogue: Catalogue, log: DecisionLog
) -> int:
    """Return the adapter's rank; an error if its files do not fit the base model."""
    name, path, config = reference.name, reference.path, folder.config
    rank = max(_number(each) for each in (config.get("r"), *_mapping(config.get("rank_pattern")).values()))
    kind = str(config.get("peft_type", "LORA"))
    if not config:
        message = f"adapter {name}: there is no {ADAPTER_CONFIG} in its folder; name a folder that PEFT has written"
        log.error("PL309", path, message)
    elif kind.upper() != "LORA":
        log.error("PL309", path, f"adapter {name}: peft_type of its {ADAPTER_CONFIG} is {kind}, must be LORA")
    elif not rank:
        message = f"adapter {name}: r of its {ADAPTER_CONFIG} is {config.get('r')}, must be 1 or more; train it as LoRA"
        log.error("PL309", path, message)
    rows = {shape[0]: tensor for tensor, shape in folder.shapes.items() if tensor.endswith(_DOWN) and len(shape) == 2}
    ranks = {_number(config.get("r")), *map(_number, _mapping(config.get("rank_pattern")).values())}
    for row, tensor in rows.items():
        if rank and row not in ranks and not config.get("target_parameters"):  # whose experts share one tensor
            message = f"{tensor} has rank {row}, but r of its {ADAPTER_CONFIG} is {config.get('r')}"
            log.error("PL309", path, f"adapter {name}: {message}; correct r, or export the adapter again")
            break
    base = catalogue.folders.get(model.storage_uri, ModelFolder()).config or model.configuration
    hidden = _number({**base, **_mapping(base.get("text_config"))}.get("hidden_size"))
    tuned_from = f", {config['base_model_name_or_path']}" if config.get("base_model_name_or_path") else ""
    widths = {
        shape[-1]: tensor
        for tensor, shape in folder.shapes.items()
        if tensor.endswith(_DOWN) and tensor.split(".")[-3] in _HIDDEN_INPUT and len(shape) == 2
    }
    for width, tensor in widths.items():
        if hidden and width != hidden:
            message = f"{tensor} has {width} inputs, but hidden_size of the base model {model.name} is {hidden}"
            log.error("PL309", path, f"adapter {name}: {message}; serve it with its own base model{tuned_from}")
            break
    return rank


def _number(value: Json) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _mapping(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, Mapping) else {}


def located(adapters: tuple[PlannedAdapter, ...], support: AdapterSupport, target: str) -> tuple[PlannedAdapter, ...]:
    """Return the adapters with the paths that the engine reads; a path of this machine stays for our predictor."""

    def path(each: PlannedAdapter) -> str:
        if support.flag == "--adapter" and is_local(each.uri) and target != "docker":
            return local_path(each.uri)
        folder, file = f"{ADAPTERS_DIR}/{each.name}", each.uri.partition("?")[0].rpartition("/")[2]
        return f"{folder}/{file}" if support.suffix and file.endswith(support.suffix) else folder

    return tuple(replace(each, path=path(each)) for each in adapters)


def check_engine(
    container: Mapping[str, Json], adapters: tuple[PlannedAdapter, ...], log: DecisionLog
) -> AdapterSupport | None:
    """Return how the engine of a container loads adapters; None with an error if it does not."""
    support = adapter_support(container)
    if support is None:
        engines = "vllm, sglang, llama.cpp or Pilotlight's predictor"
        message = f"{container.get('image')} loads no adapters; use a runtime of {engines}, or merge the weights"
        log.error("PL309", adapters[0].named_at, message)
        return None
    for each in adapters:
        if support.suffix and not each.uri.partition("?")[0].endswith(support.suffix):
            message = f"adapter {each.name}: {each.uri} is no {support.suffix} file; use convert_lora_to_gguf.py"
            log.error("PL309", each.named_at, message)
    return support


def with_adapters(
    container: Mapping[str, Json], adapters: tuple[PlannedAdapter, ...], support: AdapterSupport, *, dynamic: bool
) -> dict[str, Json]:
    """Add the flags for the adapters; `dynamic`: only those that let the engine load them later."""
    count = min(max(MIN_BATCHED, _power_of_two(len(adapters))), MAX_BATCHED)
    rank = engine_rank(each.rank for each in adapters)
    written = [str(word) for word in container.get("args") or ()]
    names = {word.partition("=")[0].replace("_", "-") for word in written}
    general = (*support.args, *(support.dynamic_args if dynamic else ()))
    args = [word.format(count=count, rank=rank) for word in general if word.partition("=")[0] not in names]
    values = [support.value.format(name=each.name, path=each.path) for each in adapters]
    if support.repeated and not dynamic:
        args += [word for value in values for word in (support.flag, value)]
    elif not dynamic:
        args += [support.flag, *values]
    env = [{"name": name, "value": value} for name, value in support.env.items()] if dynamic else []
    added = {"env": [*(container.get("env") or ()), *env]} if env else {}
    return {**container, **added, "args": [*written, *args]} if args else {**container, **added}


def engine_rank(ranks: Iterable[int]) -> int:
    """Return the rank that an engine is started for, by those of its adapters."""
    return max(MIN_RANK, _power_of_two(max(rank or UNKNOWN_RANK for rank in ranks)))


def check_canary_rank(choice: RuntimeChoice, known: tuple[Adapter, ...], log: DecisionLog) -> None:
    """Refuse a canary of adapters for whose rank the engine would restart: it has the old and the new one at once."""
    running, needed = (engine_rank(each.rank for each in adapters) for adapters in (known, choice.adapters))
    general = choice.adapter_support.args if choice.adapter_support is not None else ()
    flags = {word.format(rank=needed) for word in general if "{rank}" in word}
    if running != needed and flags & {*(choice.container.get("args") or ())}:
        highest = max(choice.adapters, key=lambda each: each.rank or UNKNOWN_RANK)
        message = f"adapter {highest.name}: its engine was started for rank {running} and would restart for {needed}"
        message += ", so its canary would prove nothing; deploy it without a canary"
        log.error("PL309", highest.named_at, message)


def _power_of_two(number: int) -> int:
    return 1 << max(number - 1, 0).bit_length()
