"""One loaded model version as the rest of the server sees it: check, cache, schedule, shape the answer."""

import asyncio
from collections.abc import Mapping, Sequence
from itertools import count
from time import perf_counter_ns

from pilotlight_predictor.classification import classify
from pilotlight_predictor.errors import BadRequest, Cancelled, DeadlineExceeded
from pilotlight_predictor.executor import Executor, Held, Runs, Ticket
from pilotlight_predictor.fit import Fit, InputRules
from pilotlight_predictor.inference import Done, InferRequest, InferResponse, Outputs, OutputsWithParameters, Part
from pilotlight_predictor.protocol.v2_forms import Forms
from pilotlight_predictor.repository.model_config import ModelConfig
from pilotlight_predictor.request_traces import ModelSampler
from pilotlight_predictor.response_cache import ResponseCache, cache_key
from pilotlight_predictor.safeguards import check_values
from pilotlight_predictor.settings import Limits
from pilotlight_predictor.shared_memory import is_shared, place_outputs
from pilotlight_predictor.stats import ModelStats
from pilotlight_predictor.streaming import FirstWithin
from pilotlight_predictor.tensors import Tensor, TensorSpec
from pilotlight_predictor.waiting import Item

_LOADS = count(1)


class ServedVersion:
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
        self.instances = 1  # how many of its requests may be computed at a time
        self.decoupled = config.decoupled  # gives any number of answers to a request
        self.parked = False  # its weights have left the GPU; the next request brings them back
        self.sampler: ModelSampler | None = None  # while an operator has requests traced
        self._rules = InputRules(config)
        self._cache = cache
        self._loaded = next(_LOADS)
        self.forms = Forms()  # in which V2's JSON asks it
        self.verbs: frozenset[str] = frozenset()  # what of V1 the model does itself, given the JSON as it came
        self._reshape = {t.name: t.dims for t in config.outputs if t.reshape is not None}
        self._fixed = frozenset(t.name for t in config.inputs if t.dims and t.dims[-1] != -1)

    def infer(
        self, request: InferRequest, done: Done, limits: Limits | None = None, held: Held | None = None
    ) -> Ticket:
        """Raises at once when the request does not fit or cannot be queued; else `done` is called once, later.

        `limits` are those of the dialect that a client speaks; None for what comes from within. `held` is what
        `executor.hold` gave: then the request is run even if the model was unloaded since.
        """
        if self.sampler is not None and limits is not None:
            done = self.sampler.watch(self, request, done)
        if self.decoupled:
            return self._infer_whole(request, done, limits, held)
        rows, signature = self._fit(request, limits)
        timeout_s = limits.timeout_s if limits is not None else 0.0
        runs = held or self.executor
        if self._cache is not None and request.document is None and not any(map(is_shared, request.inputs.values())):
            return self._infer_cached(request, done, rows, signature, timeout_s, runs)
        item = Item(request, lambda answer: done(self.response(request, answer)), rows, signature)
        return self._submit(item, timeout_s, runs)

    def infer_now(self, request: InferRequest, limits: Limits) -> InferResponse | Exception | None:
        """The answer of a quick model that has nothing else to do; None where the request is one for `infer`.

        For whoever gains nothing by a batch: others have no turn of the loop in which to join it.
        """
        if self._cache is not None or self.sampler is not None or self.decoupled:
            return None
        answer = self.executor.now()
        if answer is None:
            return None
        rows, _ = self._fit(request, limits)
        return self.response(request, answer(request, rows))

    def goes_straight(self, limits: Limits) -> bool:
        """Whether a request that is known to fit, and that nobody traces, is the executor's alone."""
        return (
            self._cache is None and not self.decoupled and limits.timeout_s <= 0 and limits.max_sequence_length is None
        )

    def stream(
        self, request: InferRequest, part: Part, limits: Limits | None = None, held: Held | None = None
    ) -> Ticket:
        """As `infer`, for any number of answers: `part` is called for each, on the event loop, in order, and ends with
        exactly one that is final. A model that answers once gives one final part. `timeout_s` counts to the first.
        """
        if not self.decoupled:
            return self.infer(request, lambda result: part(result, True), limits, held)
        rows, signature = self._fit(request, limits)
        runs, heard = held or self.executor, FirstWithin(part)

        def answered(answer: Outputs | Exception, final: bool) -> None:
            heard(self.response(request, answer), final)

        item = Item(request, lambda error: answered(error, True), rows, signature, part=answered)
        runs.submit(item)
        if limits is not None and limits.timeout_s > 0:
            heard.limit(limits.timeout_s, lambda: self._expire(item, limits.timeout_s, runs))
        return Ticket(runs, item)

    def _expire(self, item: Item, timeout_s: float, runs: Runs) -> None:
        item.answer(_late(timeout_s))
        runs.cancel(item)

    def _infer_whole(self, request: InferRequest, done: Done, limits: Limits | None, held: Held | None) -> Ticket:
        """Waits for the one answer of a model that may give any number."""
        found: list[InferResponse | Exception] = []

        def part(result: InferResponse | Exception, final: bool) -> None:
            if isinstance(result, Exception) or result.outputs:
                found.append(result)
            if final:
                done(_the_one(self.name, found))
            elif len(found) > 1:
                ticket.cancel()  # what else would come is not wanted; the end comes with it

        ticket = self.stream(request, part, limits, held)
        return ticket

    def _fit(self, request: InferRequest, limits: Limits | None) -> Fit:
        fit: Fit | None = request.form.fit if request.form is not None else None
        if fit is None:
            fit = self._rules.check(request) if request.document is None else Fit(1, "document")
            if request.form is not None and not self._rules.reshapes:
                request.form.fit = fit
        if limits is not None and limits.max_sequence_length is not None:
            check_values(request, limits.max_sequence_length, self.config.max_batch_size > 0, self._fixed)
        return fit

    def _submit(self, item: Item, timeout_s: float, runs: Runs) -> Ticket:
        runs.submit(item)
        if timeout_s > 0:
            self._limit(item, timeout_s, runs)
        return Ticket(runs, item)

    def _limit(self, item: Item, timeout_s: float, runs: Runs) -> None:
        """Answers with DeadlineExceeded when the time has passed; a late answer of the model is dropped."""
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
                once(_late(timeout_s))
                runs.cancel(item)

        item.done = once
        timer = asyncio.get_running_loop().call_later(timeout_s, expire)

    def _infer_cached(
        self, request: InferRequest, done: Done, rows: int, signature: object, timeout_s: float, runs: Runs
    ) -> Ticket:
        assert self._cache is not None
        cache, started = self._cache, perf_counter_ns()
        key = cache_key(request, self._loaded)
        hit = cache.get(key)

        def answer_client(answer: Outputs | Exception) -> None:
            done(self.response(request, answer))

        item = Item(request, answer_client, rows, signature)
        if hit is not None:
            self.stats.record_cache_hit(perf_counter_ns() - started)
            item.gone = True
            item.answer(hit.copy())
            return Ticket(runs, item)
        self.stats.record_cache_miss(perf_counter_ns() - started)

        def keep(answer: Outputs | Exception) -> None:
            if not isinstance(answer, Exception):
                cache.put(key, answer)
            answer_client(answer)

        item.done = keep
        return self._submit(item, timeout_s, runs)

    def response(self, request: InferRequest, answer: Outputs | Exception) -> InferResponse | Exception:
        """What the client gets of what the model gave: for one request, or for a batch of which each wants the same."""
        if isinstance(answer, Exception):
            return answer
        parameters = answer.parameters if isinstance(answer, OutputsWithParameters) else {}
        try:
            if self._reshape or request.outputs:
                answer = self._shape(request, answer)
            response = InferResponse(self.name, self.version, answer, request.id, parameters)
            if request.outputs:
                place_outputs(request, response)
        except Exception as error:
            return error
        return response

    def _shape(self, request: InferRequest, answer: Outputs) -> Outputs:
        """The outputs that were asked for, in that order, reshaped and classified as configured and requested."""
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
                continue  # each answer of several has what it has
            if tensor is None:
                raise BadRequest(f"model '{self.name}' gave no output '{output.name}'; it gave {', '.join(answer)}")
            if output.classification:
                labels = self.labels.get(output.name, ())
                batched = self.config.max_batch_size > 0
                tensor = classify(output.name, tensor, output.classification, labels, batched)
            chosen[output.name] = tensor
        return chosen


def _late(timeout_s: float) -> DeadlineExceeded:
    return DeadlineExceeded(f"inference took longer than {timeout_s:g} s (--inference-timeout-s)")


def _the_one(model: str, found: Sequence[InferResponse | Exception]) -> InferResponse | Exception:
    if found and (len(found) == 1 or (isinstance(found[-1], Exception) and not isinstance(found[-1], Cancelled))):
        return found[-1]
    gave = "several answers" if found else "no answer"
    return BadRequest(f"'{model}' is decoupled and gave {gave}: ask it by ModelStreamInfer or generate_stream")
