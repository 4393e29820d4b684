"""Loads one version of one model: file → backend → instances on their devices → complete config → warm-up answer.

Blocking; runs in a thread of its own so that the server answers while it works.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter, perf_counter_ns
from types import ModuleType

from msgspec import Struct, field
from msgspec.structs import replace

from pilotlight_predictor import backends
from pilotlight_predictor.backends.base import AnyInstance, Device, LoadSpec, is_decoupled
from pilotlight_predictor.bringing import prepare
from pilotlight_predictor.collected import run_alone
from pilotlight_predictor.devices import gpu_count, place
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.fit import InputRules
from pilotlight_predictor.inference import InferRequest
from pilotlight_predictor.logs import log
from pilotlight_predictor.model_calls import ModelCalls
from pilotlight_predictor.repository.complete import BatchDefaults, Found, complete
from pilotlight_predictor.repository.labels import read_labels
from pilotlight_predictor.repository.layout import ModelSource, model_file
from pilotlight_predictor.repository.model_config import ModelConfig
from pilotlight_predictor.repository.unserved import without_effect
from pilotlight_predictor.sequence_instance import check_sequences_can_be_served, in_sequences, with_states
from pilotlight_predictor.settings import Settings
from pilotlight_predictor.warmup import configured_requests, zero_request
from pilotlight_predictor.weights.cuda_driver import compute_capability


class Loaded(Struct):
    """One version that is ready to serve, and how long each part of its load took."""

    config: ModelConfig
    version: int
    instances: Sequence[AnyInstance]
    labels: Mapping[str, Sequence[str]]
    phases: dict[str, float] = field(default_factory=dict)
    trial_ns: int = 0  # the quickest warm-up of a backend that may run on the event loop


def load_version(
    source: ModelSource, version: int, config: ModelConfig | None, settings: Settings, calls: ModelCalls | None = None
) -> Loaded:
    """`config` is what the repository or an override says, if anything; the result's is complete."""
    phases: dict[str, float] = {}
    given = config or ModelConfig(name=source.name)
    if given.sequence_batching is not None:
        check_sequences_can_be_served(given, settings.server.workers)
    if given.ensemble:
        _tell_idle(given, version)
        whole = complete(config, source.name, Found("ensemble"), _defaults(settings))
        return Loaded(whole, version, (), read_labels(source.model_dir, whole), phases)
    path = _file(source, version, given)
    row = _row(given, path)
    _tell_idle(given, version, row.graphs)
    spec = _spec(LoadSpec(with_states(given), version, path, source.model_dir, calls=calls), settings)
    devices = place(given.instance_groups, settings.model.device, gpu_count(), settings.performance.instance_count)
    with _Timed(phases, "import"):
        row = _given_way(row, replace(spec, device=devices[0]))
        module = backends.module(row)
        if hasattr(module, "ahead"):  # weights travel while their library is imported
            spec = replace(spec, ahead=module.ahead(replace(spec, device=devices[0])))
        prepare(row)
    instances: list[AnyInstance] = []
    try:
        with _Timed(phases, "load"):
            _make(instances, module, spec, devices)
            config = getattr(instances[0], "completed", None) or config
            whole = complete(config, source.name, _found(row, instances[0]), _defaults(settings))
            whole = _told_of_parts(whole, is_decoupled(instances[0]))
            labels = read_labels(source.model_dir, whole)
            if whole.sequence_batching is not None:
                instances[:] = in_sequences(instances, whole, source.model_dir)
        with _Timed(phases, "warmup"):
            answered = [_warm_up(instance, whole, source.model_dir) for instance in instances]
            trial_ns = _trial(instances[0], whole) if instances[0].quick and all(answered) else 0
    except BaseException:
        discard(instances)
        raise
    return Loaded(whole, version, instances, labels, phases, trial_ns)


def discard(instances: Sequence[AnyInstance]) -> None:
    """Frees instances that will never serve."""
    for instance in instances:
        try:
            instance.close()
        except Exception as error:
            message = "an instance that failed to load failed again while it was closed"
            log("backend.close_failed", message, level="ERROR", error=error)


class _Timed:
    def __init__(self, phases: dict[str, float], name: str) -> None:
        self._phases, self._name = phases, name

    def __enter__(self) -> None:
        self._start = perf_counter()

    def __exit__(self, *_: object) -> None:
        self._phases[self._name] = perf_counter() - self._start


def _tell_idle(config: ModelConfig, version: int, graphs: bool = False) -> None:
    if idle := without_effect(config, graphs=graphs):
        message = f"the configuration of model '{config.name}' sets what has no effect here: {', '.join(idle)}"
        log("model.without_effect", message, level="WARNING", model=config.name, version=version)


def _file(source: ModelSource, version: int, config: ModelConfig) -> Path:
    capability = compute_capability(0) if config.cc_model_filenames else None
    return model_file(config, source.versions[version], capability)


def _row(config: ModelConfig, path: Path) -> backends.Row:
    named = config.platform or config.backend
    row = backends.row(named) if named else backends.row_for_folder(path) or backends.row_for_file(path.name)
    if row is None and named:
        known = ", ".join(name for r in backends.rows() for name in r.names)
        raise LoadFailed(f"no backend '{named}'; there are {known}")
    if row is None:
        endings = dict.fromkeys("." + file.rpartition(".")[2] for r in backends.TABLE for file in r.files)
        kind = f"{path.suffix} files" if path.suffix else "files without an ending"
        raise LoadFailed(f"{path.name}: no backend runs {kind}; known endings are {', '.join(endings)}")
    return row


def _given_way(row: backends.Row, spec: LoadSpec) -> backends.Row:
    """Another backend, where the one that the file or the configuration names knows a better one for it."""
    instead = getattr(backends.module(row), "instead", None)
    return (backends.row(instead(spec)) or row) if instead is not None else row


def _spec(bare: LoadSpec, settings: Settings) -> LoadSpec:
    told = settings.model
    return replace(
        bare, precision=told.precision, threads=told.threads, trusted_pickles=told.trusted_pickles,
        trusted_compiled=told.trusted_compiled, parks=told.parks,
    )  # fmt: skip


def _make(made: list[AnyInstance], module: ModuleType, spec: LoadSpec, devices: Sequence[Device]) -> None:
    """One instance per place, into `made` one by one, so that a failure leaves those before it to be freed."""
    first: dict[str, AnyInstance] = {}
    for device in devices:
        known = first.get(str(device))
        # What was begun ahead was begun for the first device.
        instance = known.clone() if known else module.load(replace(spec, device=device, ahead=spec.ahead))
        spec = replace(spec, ahead=None)
        first.setdefault(str(device), instance)
        made.append(instance)


def _found(row: backends.Row, instance: AnyInstance) -> Found:
    shapes = [spec.shape for spec in (*instance.inputs, *instance.outputs)]
    batchable = bool(shapes) and all(shape and shape[0] == -1 for shape in shapes)
    return Found(row.names[0], instance.inputs, instance.outputs, batchable)


def _told_of_parts(config: ModelConfig, decoupled: bool) -> ModelConfig:
    """A model may be decoupled by its nature; one that is not cannot be made so."""
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


def _trial(instance: AnyInstance, config: ModelConfig) -> int:
    """How long a small request takes when nothing else runs; 0 when zeros do not fit the model."""
    request, quickest = zero_request(config), 0
    for _ in range(3):
        started = perf_counter_ns()
        if _attempt(instance, request) is not None:
            return 0
        took = perf_counter_ns() - started
        quickest = min(quickest or took, took)
    return quickest


def _warm_up(instance: AnyInstance, config: ModelConfig, model_dir: Path) -> bool:
    """Configured samples must succeed; the zeros that stand in for them need not fit a model, so they only warn."""
    problem = None
    if config.warmups:
        rules = InputRules(config)
        for request in configured_requests(config, model_dir):
            problem = _attempt(instance, request, rules)
            if problem is not None:
                raise LoadFailed(f"warm-up of model '{config.name}' failed: {problem}") from problem
    elif config.inputs:
        problem = _attempt(instance, zero_request(config))
        if problem is not None:
            message = f"model '{config.name}' could not answer a warm-up of zeros: {problem}"
            log("model.warmup_failed", message, level="WARNING", model=config.name)
    return problem is None


def _attempt(instance: AnyInstance, request: InferRequest, rules: InputRules | None = None) -> Exception | None:
    try:
        if rules is not None:
            rules.check(request)
        answer = run_alone(instance, request) if is_decoupled(instance) else instance.execute([request])[0]
    except Exception as error:
        return error
    return answer if isinstance(answer, Exception) else None
