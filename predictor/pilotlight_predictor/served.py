"""One loaded model version as the rest of the server sees it: check, cache, schedule, shape the answer."""

import asyncio
from collections.abc import Mapping, Sequence
from itertools import count
from time import perf_counter_ns

from pilotlight_predictor.classification import classify
from pilotlight_predictor.errors import BadRequest, DeadlineExceeded
from pilotlight_predictor.executor import Executor, Held, Runs, Ticket
from pilotlight_predictor.fit import Fit, InputRules
from pilotlight_predictor.inference import Done, InferRequest, InferResponse, Outputs
from pilotlight_predictor.repository.model_config import ModelConfig
from pilotlight_predictor.response_cache import ResponseCache, cache_key
from pilotlight_predictor.safeguards import check_values
from pilotlight_predictor.settings import Limits
from pilotlight_predictor.stats import ModelStats
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
        self._rules = InputRules(config)
        self._cache = cache
        self._loaded = next(_LOADS)
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
        rows, signature = self._rules.check(request) if request.document is None else Fit(1, "document")
        timeout_s = 0.0
        if limits is not None:
            timeout_s = limits.timeout_s
            if limits.max_sequence_length is not None:
                check_values(request, limits.max_sequence_length, self.config.max_batch_size > 0, self._fixed)
        runs = held or self.executor
        if self._cache is not None and request.document is None:
            return self._infer_cached(request, done, rows, signature, timeout_s, runs)
        item = Item(request, lambda answer: done(self._response(request, answer)), rows, signature)
        return self._submit(item, timeout_s, runs)

    def _submit(self, item: Item, timeout_s: float, runs: Runs) -> Ticket:
        runs.submit(item)
        if timeout_s > 0:
            self._limit(item, timeout_s, runs)
        return Ticket(runs.cancel, item)

    def _limit(self, item: Item, timeout_s: float, runs: Runs) -> None:
        """Answers with DeadlineExceeded when the time has passed; a late answer of the model is dropped."""
        original = item.done
        answered = False

        def once(answer: Outputs | Exception) -> None:
            nonlocal answered
            if not answered:
                answered = True
                timer.cancel()
                original(answer)

        def expire() -> None:
            if not answered:
                once(DeadlineExceeded(f"inference took longer than {timeout_s:g} s (--inference-timeout-s)"))
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
        item = Item(request, lambda answer: done(self._response(request, answer)), rows, signature)
        if hit is not None:
            self.stats.record_cache_hit(perf_counter_ns() - started)
            item.gone = True
            item.done(dict(hit))
            return Ticket(runs.cancel, item)
        self.stats.record_cache_miss(perf_counter_ns() - started)
        answer_client = item.done

        def keep(answer: Outputs | Exception) -> None:
            if not isinstance(answer, Exception):
                cache.put(key, answer)
            answer_client(answer)

        item.done = keep
        return self._submit(item, timeout_s, runs)

    def _response(self, request: InferRequest, answer: Outputs | Exception) -> InferResponse | Exception:
        if isinstance(answer, Exception):
            return answer
        try:
            outputs = self._shape(request, answer)
        except Exception as error:
            return error
        return InferResponse(self.name, self.version, outputs, request.id)

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
            if tensor is None:
                raise BadRequest(f"model '{self.name}' gave no output '{output.name}'; it gave {', '.join(answer)}")
            if output.classification:
                labels = self.labels.get(output.name, ())
                batched = self.config.max_batch_size > 0
                tensor = classify(output.name, tensor, output.classification, labels, batched)
            chosen[output.name] = tensor
        return chosen
