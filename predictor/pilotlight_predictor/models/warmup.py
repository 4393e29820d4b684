"""Warm-up of a loaded version: requests that each instance must answer before the version serves.

They are the first of: the samples of `model_warmup`, an example request (--example, or example.json next to the model),
zeros made from the declared inputs. Any failure fails the load, with one exception: zeros that the model rejects as a
bad request say nothing about the model, unless it rejects the declared shape. A version without a successful warm-up is
unverified until its first answer.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import perf_counter_ns
from typing import Final, NamedTuple

import numpy as np

from pilotlight_predictor.backends.base import AnyInstance, ModelCaller, VersionId, is_decoupled
from pilotlight_predictor.backends.response_collector import run_warmup
from pilotlight_predictor.core.requests import InferRequest, Inputs, size_of
from pilotlight_predictor.core.tensors import NUMPY_TYPES, Array, Shape, Tensor, decode_raw, zeros
from pilotlight_predictor.errors import BadRequest, LoadFailed, PredictorError, ShapeMismatch
from pilotlight_predictor.models.input_validation import InputValidator
from pilotlight_predictor.observability.logs import log
from pilotlight_predictor.repository.layout import ModelSource
from pilotlight_predictor.repository.model_config import ModelConfig, Warmup, WarmupInput

SHORT: Final = 4096  # bytes of a request that stays in memory as an example
EXAMPLE_FILE: Final = "example.json"
REMEDY: Final = (
    "fix the model, or put a request that it accepts into example.json beside its file, or give one by --example "
    "(serve), or turn the warm-up off: --set spec.predictor.model.warmup=none (deploy) or --warmup none (serve)"
)
DECLARATION: Final = "correct them (INPUTS in model.py, or config.pbtxt)"

# Body of an example, configuration, V1 verbs that the model implements itself → request. Raises BadRequest.
DecodeExample = Callable[[bytes, ModelConfig, frozenset[str]], InferRequest]


class WarmupPlan(NamedTuple):
    """Requests of a warm-up. `automatic`: zeros, which a model may reject; `origin` names the others in errors."""

    requests: Sequence[InferRequest] = ()
    automatic: bool = False
    origin: str = ""


class WarmupResult(NamedTuple):
    """`verified`: every instance has answered. `trial_ns`: fastest execution of a quick backend, else 0.

    `example`: a short request that was answered, to show to users. `failure`: why zeros were not answered.
    """

    verified: bool
    trial_ns: int = 0
    example: InferRequest | None = None
    failure: str = ""


def plan_warmup(
    source: ModelSource, version: int, config: ModelConfig, verbs: frozenset[str], decode: DecodeExample | None, *,
    automatic: bool, sample: Inputs | None = None,
) -> WarmupPlan:  # fmt: skip
    """Choose the requests of the warm-up; none if there is nothing to send. Raises LoadFailed for a bad example.

    `automatic`: whether zeros may be sent, or the backend's own `sample` in their place; nothing if that is empty.
    """
    if config.warmups:
        return WarmupPlan(tuple(configured_requests(config, source.model_dir)), origin="model_warmup")
    example = find_example(source, version)
    if example is not None and decode is not None:
        origin = example.name if isinstance(example, Path) else "the example (model.example or --example)"
        return WarmupPlan((read_example(example, config, verbs, decode),), origin=origin)
    if automatic and config.inputs and sample != {}:
        request = InferRequest(config.name, sample) if sample else zero_request(config)
        return WarmupPlan((request,), automatic=True)
    return WarmupPlan()


def find_example(source: ModelSource, version: int) -> Path | bytes | None:
    """Return the example of the setting, of the version's folder or of the model's folder, in that order."""
    if source.example is not None:
        return source.example
    version_path = source.versions[version]
    folder = version_path if version_path.is_dir() else version_path.parent
    return next((path for path in (folder / EXAMPLE_FILE, source.model_dir / EXAMPLE_FILE) if path.is_file()), None)


def read_example(
    example: Path | bytes, config: ModelConfig, verbs: frozenset[str], decode: DecodeExample
) -> InferRequest:
    name = f"example {example}" if isinstance(example, Path) else "the example (model.example or --example)"
    try:
        request = decode(example.read_bytes() if isinstance(example, Path) else example, config, verbs)
        if request.document is None:
            InputValidator(config).check(request)
    except OSError as error:
        raise LoadFailed(f"{name} cannot be read: {error.strerror}") from None
    except BadRequest as error:
        raise LoadFailed(f"{name} is not a valid request for the model: {error}") from None
    return request


def run_warmups(
    instances: Sequence[AnyInstance], config: ModelConfig, version: int, plan: WarmupPlan, folder: Path,
    calls: ModelCaller | None = None,
) -> WarmupResult:  # fmt: skip
    """Send the plan's requests to every instance. Raises LoadFailed with the reason and its place in `folder`."""
    rules = InputValidator(config) if config.warmups else None
    first = 0 if config.max_batch_size else 1  # the rows, which may be variable where zeros fit every request
    fixed = all(-1 not in (t.dims[first:] or t.dims) for t in config.inputs)
    for instance in instances:
        for request in plan.requests:
            problem = try_request(instance, request, rules)
            if problem is None:
                continue
            refused = calls is not None and calls.take_refused(VersionId(config.name, version))
            if isinstance(problem, ShapeMismatch) and plan.automatic and fixed:
                raise LoadFailed(f"its declared inputs do not fit the model: {problem}; {DECLARATION}") from None
            if plan.automatic and (isinstance(problem, BadRequest) or refused):
                why = "it calls a model that is not ready yet" if refused else str(problem)
                message = f"model '{config.name}' is unverified, its warm-up with zeros failed: {why}"
                log("model.unverified", message, level="WARNING", model=config.name, version=version)
                return WarmupResult(False, failure=why)
            shapes = ", ".join(f"{name} {list(tensor.array.shape)}" for name, tensor in request.inputs.items())
            what = f"zeros that the server made up: {shapes}" if plan.automatic else plan.origin
            reason = f"warm-up failed ({what}): {describe_failure(problem, folder)}; {REMEDY}"
            raise LoadFailed(reason) from cause_of(problem)
    if not plan.requests:
        return WarmupResult(False)
    first_request = plan.requests[0]
    strings = (tensor.array for tensor in first_request.inputs.values() if tensor.array.dtype == object)
    size = size_of(first_request.inputs) + sum(len(item) for array in strings for item in array.flat)
    example = first_request if size + len(str(first_request.document or "")) <= SHORT else None
    if not instances[0].quick:
        return WarmupResult(True, example=example)
    # Samples of model_warmup may be large batches.
    sample = zero_request(config) if config.warmups else plan.requests[0]
    return WarmupResult(True, measure(instances[0], sample), example)


def cause_of(error: Exception) -> Exception:
    """Return the exception of the model's own code, where a backend has replaced it."""
    return error.__cause__ if isinstance(error.__cause__, Exception) else error


def describe_failure(error: Exception, folder: Path) -> str:
    """Return the exception in one line, and the file and line of its innermost frame below `folder`."""
    cause = cause_of(error)
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    text = lines[0] if lines else ""
    if not isinstance(cause, PredictorError):
        text = f"{type(cause).__name__}: {text}" if text else type(cause).__name__
    place, frame = "", cause.__traceback__
    while frame is not None:
        path = Path(frame.tb_frame.f_code.co_filename)
        if path.is_relative_to(folder):
            place = f" ({path.relative_to(folder)}:{frame.tb_lineno})"
        frame = frame.tb_next
    return text + place


def measure(instance: AnyInstance, request: InferRequest) -> int:
    """Return the shortest of three executions of a request, in ns; 0 if it fails."""
    shortest = 0
    for _ in range(3):
        started = perf_counter_ns()
        if try_request(instance, request) is not None:
            return 0
        took = perf_counter_ns() - started
        shortest = min(shortest or took, took)
    return shortest


def try_request(instance: AnyInstance, request: InferRequest, rules: InputValidator | None = None) -> Exception | None:
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
    """Yield the samples of `model_warmup`."""
    for warmup in config.warmups:
        inputs = {name: _input(config, warmup, name, spec, model_dir) for name, spec in warmup.inputs.items()}
        for _ in range(max(1, warmup.count)):
            yield InferRequest(config.name, dict(inputs))


def _input(config: ModelConfig, warmup: Warmup, name: str, spec: WarmupInput, model_dir: Path) -> Tensor:
    shape = _shape(config, spec.dims, max(1, warmup.batch_size))
    if spec.source == "zero" or (spec.source == "random" and spec.datatype == "BYTES"):
        return zeros(spec.datatype, shape)
    if spec.source == "random":
        generator, most = np.random.default_rng(0), 0x3F80 if spec.datatype == "BF16" else 2
        numbers = spec.datatype.startswith("FP")
        values: Array = generator.random(shape) if numbers else generator.integers(0, most, shape)
        return Tensor(spec.datatype, values.astype(NUMPY_TYPES[spec.datatype]))
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
