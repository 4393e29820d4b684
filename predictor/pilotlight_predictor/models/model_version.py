"""A loaded model version: validate requests, look in the response cache, schedule, and shape responses.

The classification extension turns an output into its best classes as "value:index[:label]".
"""

import asyncio
from collections.abc import Mapping, Sequence
from itertools import count
from time import perf_counter_ns
from typing import Any, Final

import numpy as np

from pilotlight_predictor.backends.base import Adapters
from pilotlight_predictor.config import Limits
from pilotlight_predictor.core.requests import Done, InferRequest, InferResponse, Outputs, OutputsWithParameters, Part
from pilotlight_predictor.core.shared_memory import is_shared, place_outputs
from pilotlight_predictor.core.tensors import Array, Tensor, TensorSpec, bf16_to_float
from pilotlight_predictor.errors import BadRequest, Cancelled, DeadlineExceeded
from pilotlight_predictor.metrics.model_stats import ModelStats
from pilotlight_predictor.models.input_validation import BatchInfo, InputValidator, check_values
from pilotlight_predictor.models.response_cache import ResponseCache, cache_key
from pilotlight_predictor.observability.request_traces import ModelSampler
from pilotlight_predictor.repository.model_config import ModelConfig
from pilotlight_predictor.scheduling.executor_interface import Executor, HeldExecutor, RequestRunner, Ticket
from pilotlight_predictor.scheduling.queue import QueuedRequest
from pilotlight_predictor.scheduling.streaming import FirstResponseTimeout

_LOADS = count(1)
MAX_RANKED: Final = 1 << 20  # elements of an output that are sorted for a classification: 80 ms on the event loop
MAX_CLASSES: Final = 1 << 16  # of all rows of an output: 60 ms
MAX_CACHED: Final = 1 << 20  # bytes of a request that is looked up in the response cache: hashed in 1 ms


def classify(name: str, tensor: Tensor, count: int, labels: Sequence[str], batched: bool) -> Tensor:
    """Return the `count` largest values of each row as strings."""
    rows, top = ranked(name, tensor, count, batched)
    texts = np.empty(top.shape, dtype=object)
    for position, index in np.ndenumerate(top):
        value = rows[position[0], index]
        number = f"{float(value):f}" if value.dtype.kind == "f" else str(int(value))
        label = f":{labels[index]}" if index < len(labels) and labels[index] else ""
        texts[position] = f"{number}:{index}{label}".encode()
    return Tensor("BYTES", texts if batched else texts.reshape(-1))


def ranked(name: str, tensor: Tensor, count: int, batched: bool) -> tuple[Array, Array]:
    """Return the rows (one if the model does not batch) and the indices of each row's `count` largest, best first."""
    array = bf16_to_float(tensor.array) if tensor.datatype == "BF16" else tensor.array
    if array.dtype.kind not in "iuf":
        raise BadRequest(f"output '{name}' is {tensor.datatype}; classification needs numbers")
    lead = array.shape[0] if batched else 1
    rows = array.reshape((lead, -1) if array.size else (lead, 0))
    best = min(count, rows.shape[1])
    if array.size > MAX_RANKED or lead * best > MAX_CLASSES:
        raise BadRequest(
            f"output '{name}' has {array.size} elements and {lead * best} classes are requested; the limits are"
            f" {MAX_RANKED} elements and {MAX_CLASSES} classes"
        )
    top = np.argsort(-rows.astype(np.float64), axis=1, kind="stable")[:, :best]
    return rows, top


class ModelVersion:
    """A loaded version as protocols and ensembles use it. On the event loop."""

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        executor: Executor,
        stats: ModelStats,
        specs: tuple[Sequence[TensorSpec], Sequence[TensorSpec]],
        labels: Mapping[str, Sequence[str]],
        cache: ResponseCache | None = None,
    ) -> None:
        self.name = config.name
        self.config = config
        self.version = version
        self.executor = executor
        self.stats = stats
        self.inputs, self.outputs = specs
        self.labels = labels
        self.instances = 1  # requests that may execute at a time
        self.decoupled = config.decoupled  # any number of responses per request
        self.parked = False  # weights are off the GPU; the next request restores them
        self.sampler: ModelSampler | None = None  # set while request traces are enabled
        self.answered_warmup = False
        self.warmup_failure = ""
        self.example: InferRequest | None = None  # a short request that it has answered, to show to users
        self.unverified_failures = 0  # responses with status 500 before the version was verified
        self._earlier_successes = stats.success_count  # of a version that this one replaces: statistics continue
        self._validator = InputValidator(config)
        self.check_input, self.check = self._validator.check_input, self._validator.check
        # Raw bytes of the other datatypes are used in place.
        self.reads_elements = not config.inputs or any(t.datatype in {"BYTES", "BOOL"} for t in config.inputs)
        self._cache = cache
        self.loaded = next(_LOADS)  # unique to each load of each version
        self.templates: Any = None  # the V2 route's request templates, set at its first request
        self.v1_verbs: frozenset[str] = frozenset()  # V1 verbs that the model implements itself, on undecoded JSON
        self.chats = True  # false: a text model without a chat template, which refuses `messages`
        self.adapters: Sequence[Adapters] = ()  # LoRA adapters of each copy of the weights
        self._reshape = {t.name: t.dims for t in config.outputs if t.reshape is not None}
        self._fixed = frozenset(t.name for t in config.inputs if t.dims and t.dims[-1] != -1)

    @property
    def verified(self) -> bool:
        """Whether the version has answered: its warm-up, or any request."""
        return self.answered_warmup or self.stats.success_count > self._earlier_successes

    @property
    def adapter_paths(self) -> Mapping[str, str]:
        return self.adapters[0].paths if self.adapters else {}

    def verification(self) -> dict[str, Any]:
        return {"verified": self.verified, "unverified_failures": self.unverified_failures}

    def infer(
        self, request: InferRequest, done: Done, limits: Limits | None = None, held: HeldExecutor | None = None
    ) -> Ticket:
        """Submit a request; `done` is called once, later. Raises if the request is invalid or cannot be queued.

        `limits`: those of the client's protocol; None for internal requests. `held`: the result of `executor.hold`,
        which runs the request even if the model was unloaded since.
        """
        if self.sampler is not None and limits is not None:
            done = self.sampler.watch(self, request, done)
        if self.decoupled:
            return self._infer_single(request, done, limits, held)
        rows, signature = self._validate(request, limits)
        timeout_s = limits.timeout_s if limits is not None else 0.0
        runner = held or self.executor
        if self._cache is not None and request.document is None and _is_cacheable(request):
            return self._infer_cached(request, done, rows, signature, timeout_s, runner)
        item = QueuedRequest(request, lambda answer: done(self.response(request, answer)), rows, signature)
        return self._submit(item, timeout_s, runner)

    def infer_inline(self, request: InferRequest, limits: Limits) -> InferResponse | Exception | None:
        """Run a request synchronously on a fast, idle model; None if it has to go through `infer`.

        For a client that sends one request at a time: no other request can join its batch.
        """
        if self._cache is not None or self.sampler is not None or self.decoupled:
            return None
        answer = self.executor.inline_call()
        if answer is None:
            return None
        rows, _ = self._validate(request, limits)
        return self.response(request, answer(request, rows))

    def bypasses_checks(self, limits: Limits) -> bool:
        """Whether a valid, untraced request may be submitted to the executor directly."""
        return (
            self._cache is None and not self.decoupled and limits.timeout_s <= 0 and limits.max_sequence_length is None
        )

    def stream(
        self, request: InferRequest, part: Part, limits: Limits | None = None, held: HeldExecutor | None = None
    ) -> Ticket:
        """As `infer`, for any number of responses: `part` is called for each, on the event loop, in order, the last one
        being final. A model that is not decoupled gives one final part. `timeout_s` limits the time to the first.
        """
        if not self.decoupled:
            return self.infer(request, lambda result: part(result, True), limits, held)
        rows, signature = self._validate(request, limits)
        runner, guarded = held or self.executor, FirstResponseTimeout(part)

        def answered(answer: Outputs | Exception, final: bool) -> None:
            guarded(self.response(request, answer), final)

        def expire() -> None:
            item.answer(_deadline_error(timeout_s))
            runner.cancel(item)

        item = QueuedRequest(request, lambda error: answered(error, True), rows, signature, part=answered)
        runner.submit(item)
        timeout_s = limits.timeout_s if limits is not None else 0.0
        if timeout_s > 0:
            guarded.limit(timeout_s, expire)
        return Ticket(runner, item)

    def _infer_single(
        self, request: InferRequest, done: Done, limits: Limits | None, held: HeldExecutor | None
    ) -> Ticket:
        """Submit to a decoupled model where the protocol allows one response only: more than one is an error."""
        responses: list[InferResponse | Exception] = []

        def part(result: InferResponse | Exception, final: bool) -> None:
            if isinstance(result, Exception) or result.outputs:
                responses.append(result)
            if final:
                done(_single_response(self.name, responses))
            elif len(responses) > 1:
                ticket.cancel()  # a final part follows

        ticket = self.stream(request, part, limits, held)
        return ticket

    def _validate(self, request: InferRequest, limits: Limits | None) -> BatchInfo:
        fit: BatchInfo | None = request.template.fit if request.template is not None else None
        if fit is None:
            fit = self._validator.check(request) if request.document is None else BatchInfo(1, "document")
            if request.template is not None and not self._validator.reshapes:
                request.template.fit = fit
        if limits is not None and limits.max_sequence_length is not None:
            check_values(request, limits.max_sequence_length, self.config.max_batch_size > 0, self._fixed)
        return fit

    def _submit(self, item: QueuedRequest, timeout_s: float, runner: RequestRunner) -> Ticket:
        runner.submit(item)
        if timeout_s > 0:
            self._limit(item, timeout_s, runner)
        return Ticket(runner, item)

    def _limit(self, item: QueuedRequest, timeout_s: float, runner: RequestRunner) -> None:
        """Answer with DeadlineExceeded after the timeout; a later answer of the model is dropped."""
        original = item.done
        assert original is not None
        answered = False

        def once(answer: Outputs | Exception) -> None:
            nonlocal answered
            if not answered:
                answered = True
                timer.cancel()
                original(answer)

        def expire() -> None:
            if not answered:
                once(_deadline_error(timeout_s))
                runner.cancel(item)

        item.done = once
        timer = asyncio.get_running_loop().call_later(timeout_s, expire)

    def _infer_cached(
        self, request: InferRequest, done: Done, rows: int, signature: object, timeout_s: float, runner: RequestRunner
    ) -> Ticket:
        assert self._cache is not None
        cache, started = self._cache, perf_counter_ns()
        key = cache_key(request, self.loaded)
        hit = cache.get(key)

        def answer_client(answer: Outputs | Exception) -> None:
            done(self.response(request, answer))

        item = QueuedRequest(request, answer_client, rows, signature)
        if hit is not None:
            self.stats.record_cache_hit(perf_counter_ns() - started)
            item.gone = True
            item.answer(hit.copy())
            return Ticket(runner, item)
        self.stats.record_cache_miss(perf_counter_ns() - started)

        def store(answer: Outputs | Exception) -> None:
            if not isinstance(answer, Exception):
                cache.put(key, answer)
            answer_client(answer)

        item.done = store
        return self._submit(item, timeout_s, runner)

    def response(self, request: InferRequest, answer: Outputs | Exception) -> InferResponse | Exception:
        """Build the client's response from the model's outputs: for one request, or for a whole batch of requests for
        the same outputs."""
        if isinstance(answer, Exception):
            return answer
        parameters, layout = {}, None
        if isinstance(answer, OutputsWithParameters):
            parameters, layout = answer.parameters, answer.layout
        try:
            if self._reshape or request.outputs:
                answer = self._shape(request, answer)
            response = InferResponse(self.name, self.version, answer, request.id, parameters, layout=layout)
            if request.outputs:
                place_outputs(request, response)
        except Exception as error:
            return error
        return response

    def _shape(self, request: InferRequest, answer: Outputs) -> Outputs:
        """Return the requested outputs in that order, reshaped and classified as configured and requested."""
        for name, dims in self._reshape.items():
            if name in answer:
                datatype, array = answer[name]
                shape = (array.shape[0], *dims) if self.config.max_batch_size else dims
                answer[name] = Tensor(datatype, array.reshape(shape))
        if not request.outputs:
            return answer
        chosen: Outputs = {}
        for output in request.outputs:
            tensor = answer.get(output.name)
            if tensor is None and self.decoupled:
                continue  # a decoupled response need not have every output
            if tensor is None:
                raise BadRequest(f"model '{self.name}' has no output '{output.name}', only {', '.join(answer)}")
            if output.classification:
                labels = self.labels.get(output.name, ())
                batched = self.config.max_batch_size > 0
                tensor = classify(output.name, tensor, output.classification, labels, batched)
            chosen[output.name] = tensor
        return chosen


def _is_cacheable(request: InferRequest) -> bool:
    tensors = request.inputs.values()
    return sum(tensor.array.nbytes for tensor in tensors) <= MAX_CACHED and not any(map(is_shared, tensors))


def _deadline_error(timeout_s: float) -> DeadlineExceeded:
    return DeadlineExceeded(f"inference took longer than {timeout_s:g} s (--inference-timeout-s)")


def _single_response(model: str, responses: Sequence[InferResponse | Exception]) -> InferResponse | Exception:
    last = responses[-1] if responses else None
    if last is not None and (len(responses) == 1 or (isinstance(last, Exception) and not isinstance(last, Cancelled))):
        return last
    gave = "several responses" if responses else "no response"
    return BadRequest(f"'{model}' is decoupled and returned {gave}: call it with ModelStreamInfer or generate_stream")
