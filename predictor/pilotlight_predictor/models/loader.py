"""Loading of one model version: file → backend → instances on devices → completed configuration → warm-up.

Blocking; runs in a thread of its own. Warm-up requests are the configured samples, or zeros.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import perf_counter, perf_counter_ns
from types import ModuleType

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from pilotlight_predictor.backends.base import AnyInstance, Device, LoadSpec, ModelCaller, is_decoupled
from pilotlight_predictor.backends.device_placement import gpu_count, instance_devices
from pilotlight_predictor.backends.response_collector import run_warmup
from pilotlight_predictor.config import Settings
from pilotlight_predictor.core import backend_table
from pilotlight_predictor.core.errors import LoadFailed
from pilotlight_predictor.core.requests import InferRequest
from pilotlight_predictor.core.tensors import NUMPY_TYPES, Array, Shape, Tensor, decode_raw, zeros
from pilotlight_predictor.gpu.cuda_driver import compute_capability
from pilotlight_predictor.models.input_validation import InputValidator
from pilotlight_predictor.models.sources import prepare
from pilotlight_predictor.observability.logs import log
from pilotlight_predictor.repository.autocomplete import BatchDefaults, ModelFileInfo, complete
from pilotlight_predictor.repository.layout import ModelSource, model_file, read_labels
from pilotlight_predictor.repository.model_config import ModelConfig, Warmup, WarmupInput
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
    trial_ns: int = 0  # fastest warm-up of a backend that may run on the event loop


def load_version(
    source: ModelSource, version: int, config: ModelConfig | None, settings: Settings, calls: ModelCaller | None = None
) -> LoadedVersion:
    """Load a version. `config`: that of the repository or an override, if any; the result's is complete."""
    phases: dict[str, float] = {}
    declared = config or ModelConfig(name=source.name)
    if declared.sequence_batching is not None:
        check_sequences_can_be_served(declared, settings.server.workers)
    if declared.ensemble:
        _warn_ignored_fields(declared, version)
        completed = complete(config, source.name, ModelFileInfo("ensemble"), _defaults(settings))
        return LoadedVersion(completed, version, (), read_labels(source.model_dir, completed), phases)
    capability = compute_capability(0) if declared.cc_model_filenames else None
    path = model_file(declared, source.versions[version], capability)
    row = _backend_entry(declared, path)
    _warn_ignored_fields(declared, version, row.graphs)
    spec = _spec(LoadSpec(with_states(declared), version, path, source.model_dir, calls=calls), settings)
    devices = instance_devices(
        declared.instance_groups, settings.model.device, gpu_count(), settings.performance.instance_count
    )
    with _PhaseTimer(phases, "import"):
        row = _preferred_backend(row, replace(spec, device=devices[0]))
        module = backend_table.module(row)
        if hasattr(module, "prefetch"):  # weights are transferred while their library is imported
            spec = replace(spec, prefetched=module.prefetch(replace(spec, device=devices[0])))
        prepare(row)
    instances: list[AnyInstance] = []
    try:
        with _PhaseTimer(phases, "load"):
            _create_instances(instances, module, spec, devices)
            config = getattr(instances[0], "completed", None) or config
            completed = complete(config, source.name, _file_info(row, instances[0]), _defaults(settings))
            completed = _with_decoupled(completed, is_decoupled(instances[0]))
            labels = read_labels(source.model_dir, completed)
            if completed.sequence_batching is not None:
                instances[:] = sequence_instances(instances, completed, source.model_dir)
        with _PhaseTimer(phases, "warmup"):
            answered = [_warm_up(instance, completed, source.model_dir) for instance in instances]
            trial_ns = _measure(instances[0], completed) if instances[0].quick and all(answered) else 0
    except BaseException:
        discard(instances)
        raise
    return LoadedVersion(completed, version, instances, labels, phases, trial_ns)


def discard(instances: Sequence[AnyInstance]) -> None:
    """Close instances that will never serve."""
    for instance in instances:
        try:
            instance.close()
        except Exception as error:
            message = "an instance that failed to load failed again while it was closed"
            log("backend.close_failed", message, level="ERROR", error=error)


class _PhaseTimer:
    def __init__(self, phases: dict[str, float], name: str) -> None:
        self._phases, self._name = phases, name

    def __enter__(self) -> None:
        self._start = perf_counter()

    def __exit__(self, *_: object) -> None:
        self._phases[self._name] = perf_counter() - self._start


def _warn_ignored_fields(config: ModelConfig, version: int, graphs: bool = False) -> None:
    if idle := ignored_fields(config, graphs=graphs):
        message = f"the configuration of model '{config.name}' sets what has no effect here: {', '.join(idle)}"
        log("model.without_effect", message, level="WARNING", model=config.name, version=version)


def _backend_entry(config: ModelConfig, path: Path) -> backend_table.BackendEntry:
    named = config.platform or config.backend
    if named:
        row = backend_table.find_backend(named)
        if row is None:
            known = ", ".join(name for r in backend_table.all_backends() for name in r.names)
            raise LoadFailed(f"no backend '{named}'; there are {known}")
        return row
    row = backend_table.backend_for_folder(path) or backend_table.backend_for_file(path.name)
    if row is None:
        endings = dict.fromkeys("." + file.rpartition(".")[2] for r in backend_table.TABLE for file in r.files)
        kind = f"{path.suffix} files" if path.suffix else "files without an ending"
        raise LoadFailed(f"{path.name}: no backend runs {kind}; known endings are {', '.join(endings)}")
    return row


def _preferred_backend(row: backend_table.BackendEntry, spec: LoadSpec) -> backend_table.BackendEntry:
    """Return the alternative that the backend itself proposes for this model, if any."""
    alternative = getattr(backend_table.module(row), "alternative_backend", None)
    return (backend_table.find_backend(alternative(spec)) or row) if alternative is not None else row


def _spec(bare: LoadSpec, settings: Settings) -> LoadSpec:
    model = settings.model
    return replace(
        bare, precision=model.precision, threads=model.threads, trusted_pickles=model.trusted_pickles,
        trusted_compiled=model.trusted_compiled, parkable=model.parks,
    )  # fmt: skip


def _create_instances(
    instances: list[AnyInstance], module: ModuleType, spec: LoadSpec, devices: Sequence[Device]
) -> None:
    """Append one instance per device to `instances`, so that after a failure the caller can close the earlier ones."""
    first: dict[str, AnyInstance] = {}
    for device in devices:
        known = first.get(str(device))
        # The prefetch was for the first device.
        instance = known.clone() if known else module.load(replace(spec, device=device))
        spec = replace(spec, prefetched=None)
        first.setdefault(str(device), instance)
        instances.append(instance)


def _file_info(row: backend_table.BackendEntry, instance: AnyInstance) -> ModelFileInfo:
    shapes = [spec.shape for spec in (*instance.inputs, *instance.outputs)]
    batchable = bool(shapes) and all(shape and shape[0] == -1 for shape in shapes)
    return ModelFileInfo(row.names[0], instance.inputs, instance.outputs, batchable)


def _with_decoupled(config: ModelConfig, decoupled: bool) -> ModelConfig:
    """Set `decoupled` if the instance is. Raises LoadFailed if only the configuration says so."""
    if decoupled == config.decoupled:
        return config
    if not decoupled:
        raise LoadFailed(
            f"{config.name}: model_transaction_policy.decoupled is true, but the model answers each request once; "
            "remove it (docs/decoupled.md says which models may have it)"
        )
    return replace(config, decoupled=True, raw={**config.raw, "model_transaction_policy": {"decoupled": True}})


def _defaults(settings: Settings) -> BatchDefaults:
    performance = settings.performance
    return BatchDefaults(performance.max_batch_size, int(performance.batch_timeout_ms * 1000))


def _measure(instance: AnyInstance, config: ModelConfig) -> int:
    """Return the shortest of three executions of a small request, in ns; 0 if the model rejects zeros."""
    request, shortest = zero_request(config), 0
    for _ in range(3):
        started = perf_counter_ns()
        if _try_request(instance, request) is not None:
            return 0
        took = perf_counter_ns() - started
        shortest = min(shortest or took, took)
    return shortest


def _warm_up(instance: AnyInstance, config: ModelConfig, model_dir: Path) -> bool:
    """Run the configured warm-up samples, which must succeed; without any, zeros, whose failure is only a warning."""
    problem = None
    if config.warmups:
        rules = InputValidator(config)
        for request in configured_requests(config, model_dir):
            problem = _try_request(instance, request, rules)
            if problem is not None:
                raise LoadFailed(f"warm-up of model '{config.name}' failed: {problem}") from problem
    elif config.inputs:
        problem = _try_request(instance, zero_request(config))
        if problem is not None:
            message = f"model '{config.name}' could not answer a warm-up of zeros: {problem}"
            log("model.warmup_failed", message, level="WARNING", model=config.name)
    return problem is None


def _try_request(instance: AnyInstance, request: InferRequest, rules: InputValidator | None = None) -> Exception | None:
    try:
        if rules is not None:
            rules.check(request)
        answer = run_warmup(instance, request) if is_decoupled(instance) else instance.execute([request])[0]
    except Exception as error:
        return error
    return answer if isinstance(answer, Exception) else None


def zero_request(config: ModelConfig) -> InferRequest:
    """Return a request of zeros: variable dimensions are 1, BYTES empty."""
    shapes = {t.name: t.dims if t.reshape is None else t.reshape for t in config.inputs}
    return InferRequest(
        config.name, {t.name: zeros(t.datatype, _shape(config, shapes[t.name], 1)) for t in config.inputs}
    )


def configured_requests(config: ModelConfig, model_dir: Path) -> Iterator[InferRequest]:
    for warmup in config.warmups:
        inputs = {name: _input(config, warmup, name, spec, model_dir) for name, spec in warmup.inputs.items()}
        for _ in range(max(1, warmup.count)):
            yield InferRequest(config.name, dict(inputs))


def _input(config: ModelConfig, warmup: Warmup, name: str, spec: WarmupInput, model_dir: Path) -> Tensor:
    shape = _shape(config, spec.dims, max(1, warmup.batch_size))
    if spec.source == "zero" or (spec.source == "random" and spec.datatype == "BYTES"):
        return zeros(spec.datatype, shape)
    if spec.source == "random":
        return _random(spec.datatype, shape)
    path = model_dir / "warmup" / spec.filename
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LoadFailed(
            f"model_warmup '{warmup.name}': cannot read {path.name} for input '{name}': {error.strerror}"
        ) from None
    return decode_raw(f"warm-up input '{name}'", spec.datatype, shape, data)


def _shape(config: ModelConfig, dims: Shape, rows: int) -> Shape:
    fixed = tuple(1 if dim < 0 else dim for dim in dims)
    return (rows, *fixed) if config.max_batch_size else fixed


def _random(datatype: str, shape: Shape) -> Tensor:
    generator = np.random.default_rng(0)
    most = 0x3F80 if datatype == "BF16" else 2
    values: Array = generator.random(shape) if datatype.startswith("FP") else generator.integers(0, most, shape)
    return Tensor(datatype, values.astype(NUMPY_TYPES[datatype]))
