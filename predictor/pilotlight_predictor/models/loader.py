"""Loading of one model version: file → backend → instances on devices → completed configuration → warm-up.

Blocking; runs in a thread of its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from types import ModuleType

from msgspec import Struct, field
from msgspec.structs import replace

from pilotlight_predictor.backends.base import AnyInstance, Device, LoadSpec, ModelCaller, adapters_of, is_decoupled
from pilotlight_predictor.backends.device_placement import gpu_count, instance_devices
from pilotlight_predictor.config import Settings
from pilotlight_predictor.core import backend_table
from pilotlight_predictor.core.requests import InferRequest
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.gpu.cuda_driver import compute_capability
from pilotlight_predictor.models.sources import prepare
from pilotlight_predictor.models.warmup import DecodeExample, WarmupResult, plan_warmup, run_warmups
from pilotlight_predictor.observability.logs import log
from pilotlight_predictor.repository.autocomplete import BatchDefaults, ModelFileInfo, complete
from pilotlight_predictor.repository.layout import ModelSource, configured_backend, model_file, read_labels
from pilotlight_predictor.repository.model_config import ModelConfig
from pilotlight_predictor.repository.unsupported_fields import ignored_fields
from pilotlight_predictor.scheduling.sequence_state import (
    check_sequences_can_be_served,
    sequence_instances,
    with_states,
)


class LoadedVersion(Struct):
    """A loaded version and the duration of each phase of its load, in seconds."""

    config: ModelConfig
    version: int
    instances: Sequence[AnyInstance]
    labels: Mapping[str, Sequence[str]]
    phases: dict[str, float] = field(default_factory=dict)
    verified: bool = False  # every instance has answered its warm-up
    trial_ns: int = 0  # fastest warm-up of a backend that may run on the event loop
    example: InferRequest | None = None  # a short request that it has answered
    warmup_failure: str = ""  # why it has not answered zeros


def load_version(
    source: ModelSource,
    version: int,
    config: ModelConfig | None,
    settings: Settings,
    calls: ModelCaller | None = None,
    decode_example: DecodeExample | None = None,
) -> LoadedVersion:
    """Load a version. `config`: that of the repository or an override, if any; the result's is complete."""
    phases, instances = dict[str, float](), list[AnyInstance]()
    declared = config or ModelConfig(name=source.name)
    declared = replace(declared, parameters={**settings.model.parameters, **declared.parameters})
    if declared.sequence_batching is not None:
        check_sequences_can_be_served(declared, settings.server.workers)
    if declared.ensemble:
        return _load_ensemble(source, version, declared, settings)
    capability = compute_capability(0) if declared.cc_model_filenames else None
    path = model_file(declared, source.versions[version], capability)
    row = _permitted(_backend_entry(declared, path), path, settings)
    _warn_ignored_fields(declared, version, row.graphs)
    spec = _load_spec(source, version, declared, path, settings, calls)
    devices = instance_devices(
        declared.instance_groups, settings.model.device, gpu_count(), settings.performance.instance_count
    )
    with _timed(phases, "import"):
        row = _preferred_backend(row, replace(spec, device=devices[0]))
        module = backend_table.module(row)
        if hasattr(module, "prefetch"):  # weights are transferred while their library is imported
            spec = replace(spec, prefetched=module.prefetch(replace(spec, device=devices[0])))
        prepare(row)
    try:
        with _timed(phases, "load"):
            _create_instances(instances, module, spec, devices, source.adapters)
            config = getattr(instances[0], "completed", None) or config
            completed = complete(config, source.name, _file_info(row, instances[0]), _defaults(settings))
            completed = _with_decoupled(completed, is_decoupled(instances[0]))
            labels = getattr(instances[0], "labels", {}) | read_labels(source.model_dir, completed)
            if completed.sequence_batching is not None:
                instances[:] = sequence_instances(instances, completed, source.model_dir)
        with _timed(phases, "warmup"):
            warmup = _warm_up(instances, source, version, completed, settings, calls, decode_example)
    except BaseException:
        discard(instances)
        raise
    return LoadedVersion(completed, version, instances, labels, phases, *warmup)


def _load_ensemble(source: ModelSource, version: int, config: ModelConfig, settings: Settings) -> LoadedVersion:
    """Return an ensemble, which has no instances and no warm-up of its own: its models may still be loading."""
    _warn_ignored_fields(config, version)
    completed = complete(config, source.name, ModelFileInfo("ensemble"), _defaults(settings))
    return LoadedVersion(completed, version, (), read_labels(source.model_dir, completed))


def _load_spec(
    source: ModelSource, version: int, config: ModelConfig, path: Path, settings: Settings, calls: ModelCaller | None
) -> LoadSpec:
    model = settings.model
    return LoadSpec(
        with_states(config), version, path, source.model_dir, calls=calls, precision=model.precision,
        threads=model.threads, trusted_pickles=model.trusted_pickles if model.code else {},
        trusted_compiled=model.trusted_compiled, parkable=model.parks,
    )  # fmt: skip


def _warm_up(
    instances: Sequence[AnyInstance], source: ModelSource, version: int, config: ModelConfig, settings: Settings,
    calls: ModelCaller | None, decode_example: DecodeExample | None,
) -> WarmupResult:  # fmt: skip
    # A transformer's zeros would call its predictor, which may still be starting.
    automatic = settings.model.warmup != "none" and not settings.model.predictor_host
    verbs: frozenset[str] = getattr(instances[0], "verbs", frozenset())
    sample = getattr(instances[0], "sample", None)  # where a backend rejects zeros
    plan = plan_warmup(source, version, config, verbs, decode_example, automatic=automatic, sample=sample)
    return run_warmups(instances, config, version, plan, source.model_dir, calls)


def discard(instances: Sequence[AnyInstance]) -> None:
    """Close instances that will never serve."""
    for instance in instances:
        try:
            instance.close()
        except Exception as error:
            message = "closing an instance that failed to load failed"
            log("backend.close_failed", message, level="ERROR", error=error)


@contextmanager
def _timed(phases: dict[str, float], name: str) -> Iterator[None]:
    started = perf_counter()
    yield
    phases[name] = perf_counter() - started


def _warn_ignored_fields(config: ModelConfig, version: int, graphs: bool = False) -> None:
    if idle := ignored_fields(config, graphs=graphs):
        message = f"the configuration of model '{config.name}' has settings without effect: {', '.join(idle)}"
        log("model.without_effect", message, level="WARNING", model=config.name, version=version)


def _backend_entry(config: ModelConfig, path: Path) -> backend_table.BackendEntry:
    row = configured_backend(config) or backend_table.backend_for_folder(path) or backend_table.backend_for_file(path)
    if row is None:
        endings = dict.fromkeys("." + file.rpartition(".")[2] for r in backend_table.TABLE for file in r.files)
        kind = f"{path.suffix} files" if path.suffix else "files without an ending"
        if path.suffix == ".gguf":
            raise LoadFailed(f"{path.name}: no backend for {kind}; llama.cpp runs it: platformctl deploy {path.name}")
        raise LoadFailed(f"{path.name}: no backend for {kind}; known endings: {', '.join(endings)}")
    return row


def _permitted(row: backend_table.BackendEntry, path: Path, settings: Settings) -> backend_table.BackendEntry:
    """Return the backend. Raise where it runs code of its models and --model-code is false."""
    if not (settings.model.code or row.data):
        raise LoadFailed(
            f"{path.name} is a model of the backend '{row.names[0]}', which can run code, and --model-code is false;"
            " convert it to ONNX, or to safetensors in the Hugging Face layout"
        )
    return row


def _preferred_backend(row: backend_table.BackendEntry, spec: LoadSpec) -> backend_table.BackendEntry:
    """Return the alternative that the backend itself proposes for this model, if any."""
    alternative = getattr(backend_table.module(row), "alternative_backend", None)
    return (backend_table.find_backend(alternative(spec)) or row) if alternative is not None else row


def _create_instances(
    instances: list[AnyInstance], module: ModuleType, spec: LoadSpec, devices: Sequence[Device],
    adapters: Mapping[str, str],
) -> None:  # fmt: skip
    """Append one instance per device to `instances`, so that after a failure the caller can close the earlier ones."""
    # A library may end the process on a damaged file: then this is the last line of the log.
    log("model.loading", f"'{spec.config.name}' from {spec.path.name}", model=spec.config.name, version=spec.version)
    first: dict[str, AnyInstance] = {}
    for device in devices:
        known = first.get(str(device))
        # The prefetch was for the first device.
        instance = known.clone() if known else module.load(replace(spec, device=device))
        spec = replace(spec, prefetched=None)
        first.setdefault(str(device), instance)
        instances.append(instance)
    _load_adapters(instances, adapters, spec.config.name)


def _load_adapters(instances: Sequence[AnyInstance], adapters: Mapping[str, str], model: str) -> None:
    tables = adapters_of(instances)
    if adapters and not tables:
        raise LoadFailed(
            f"model '{model}' takes no adapters: only text models in Hugging Face's layout do; remove --adapter"
        )
    for name, path in adapters.items():
        if name == model:
            raise LoadFailed(f"adapter '{name}' has the name of its model; give it another name (--adapter)")
        for table in tables:
            table.load(name, path)


def _file_info(row: backend_table.BackendEntry, instance: AnyInstance) -> ModelFileInfo:
    shapes = [spec.shape for spec in (*instance.inputs, *instance.outputs)]
    batchable = bool(shapes) and all(shape and shape[0] == -1 for shape in shapes)
    open_inputs: bool = getattr(instance, "open_inputs", False)
    aliases: frozenset[str] = getattr(instance, "input_aliases", frozenset())
    return ModelFileInfo(row.names[0], instance.inputs, instance.outputs, batchable, open_inputs, aliases)


def _with_decoupled(config: ModelConfig, decoupled: bool) -> ModelConfig:
    """Set `decoupled` if the instance is. Raises LoadFailed if only the configuration says so."""
    if decoupled == config.decoupled:
        return config
    if not decoupled:
        raise LoadFailed(
            f"{config.name}: model_transaction_policy.decoupled is true, but the model answers each request once; "
            "remove it (see docs/reference/backends.md)"
        )
    return replace(config, decoupled=True, raw={**config.raw, "model_transaction_policy": {"decoupled": True}})


def _defaults(settings: Settings) -> BatchDefaults:
    performance = settings.performance
    return BatchDefaults(performance.max_batch_size, int(performance.batch_timeout_ms * 1000))
