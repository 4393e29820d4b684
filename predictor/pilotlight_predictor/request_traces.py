"""Traces of single inferences, for an operator who asked for them: one line of JSON per sampled request.

`Traces` keeps the settings and gives each model its sampler; a sampled request carries a `Trace`, in which the
scheduler notes when it ran; the line is written by a thread once it is answered. Without settings a request costs one
comparison.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count, groupby
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Final, Protocol

import orjson

from pilotlight_predictor.errors import Forbidden
from pilotlight_predictor.inference import Done, InferRequest, InferResponse, Outputs
from pilotlight_predictor.logs import log
from pilotlight_predictor.threads import in_thread
from pilotlight_predictor.trace_settings import Sampler, changed, told, trace_settings

MOST_VALUES: Final = 1000  # of a tensor, in a trace of level TENSORS
MOST_WAITING: Final = 1000  # lines; beyond them a disk is too slow, and traces are dropped
_IDS = count(1)


class Traced(Protocol):
    """A model version, as far as its traces go."""

    name: str
    version: int
    sampler: "ModelSampler | None"


class Trace:
    """One request. Times are of the clock that only goes forward, in nanoseconds."""

    def __init__(self, served: Traced, request: InferRequest) -> None:
        self._line: dict[str, Any] = {
            "id": next(_IDS),
            "model_name": served.name,
            "model_version": served.version,
            "request_id": request.id,
        }
        self._times = [("REQUEST_START", perf_counter_ns())]

    def ran(self, queued_ns: int, started_ns: int, ended_ns: int) -> None:
        self._times += [
            ("QUEUE_START", queued_ns),
            ("COMPUTE_START", started_ns),
            ("COMPUTE_INPUT_END", started_ns),
            ("COMPUTE_OUTPUT_START", ended_ns),
            ("COMPUTE_END", ended_ns),
        ]

    def line(self, tensors: Mapping[str, Outputs] | None, error: str) -> bytes:
        times = [*self._times, ("REQUEST_END", perf_counter_ns())]
        whole = {**self._line, "timestamps": [{"name": name, "ns": ns} for name, ns in times]}
        if error:
            whole["error"] = error
        for way, named in (tensors or {}).items():
            whole[way] = [_tensor(name, *tensor) for name, tensor in named.items()]
        return orjson.dumps(whole, default=str, option=orjson.OPT_APPEND_NEWLINE)


def _tensor(name: str, datatype: str, array: Any) -> dict[str, Any]:
    values = array.ravel()[:MOST_VALUES].tolist()
    data = [value.decode(errors="replace") if isinstance(value, bytes) else value for value in values]
    return {"name": name, "datatype": datatype, "shape": list(array.shape), "data": data}


class ModelSampler:
    """Begins the traces of a model. Shared by all that have no settings of their own."""

    def __init__(self, sampler: Sampler, write: Callable[[str, bytes], None]) -> None:
        self._sampler = sampler
        self._write = write
        self._tensors = "TENSORS" in sampler.settings.levels

    def watch(self, served: Traced, request: InferRequest, done: Done) -> Done:
        """`done`, which also writes the trace if the request is one of those that are traced."""
        if not self._sampler.takes():
            return done
        trace, name = Trace(served, request), self._sampler.file_name
        request.trace = trace
        inputs = dict(request.inputs)

        def done_and_traced(result: InferResponse | Exception) -> None:
            done(result)
            failed = isinstance(result, Exception)
            outputs = {} if isinstance(result, Exception) else result.outputs
            tensors = {"inputs": inputs, "outputs": outputs} if self._tensors else None
            self._write(name, trace.line(tensors, type(result).__name__ if failed else ""))

        return done_and_traced


class Traces:
    """`serving` tells the versions that are served; `folder` is the operator's, empty for none."""

    def __init__(self, serving: Callable[[], Iterable[Traced]], folder: str) -> None:
        self._serving = serving
        self._folder = Path(folder) if folder else None
        self._all: dict[str, Any] = {}
        self._own: dict[str, dict[str, Any]] = {}
        self._samplers: dict[str, ModelSampler | None] = {}
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._writing: asyncio.Task[None] | None = None

    def settings(self, model: str = "") -> dict[str, Any]:
        return told({**self._all, **self._own.get(model, {})})

    def change(self, asked: Mapping[str, Any], model: str = "") -> dict[str, Any]:
        """The settings after the change. Raises BadRequest, or Forbidden where no file may be written."""
        made = changed(self._own.get(model, {}) if model else self._all, asked)
        if made.get("trace_file") and self._folder is None:
            raise Forbidden("trace_file: this server writes no files that a call names (--files-dir)")
        if not model:
            self._all = made
        elif made:
            self._own[model] = made
        else:
            self._own.pop(model, None)
        self._samplers.clear()
        for served in self._serving():
            self.attach(served)
        return self.settings(model)

    def attach(self, served: Traced) -> None:
        """Gives a version its sampler; a model without settings of its own has that of all."""
        key = served.name if served.name in self._own else ""
        if key not in self._samplers:
            settings = trace_settings({**self._all, **self._own.get(key, {})})
            self._samplers[key] = ModelSampler(Sampler(settings), self._enqueue) if settings.active else None
        served.sampler = self._samplers[key]

    def _enqueue(self, name: str, line: bytes) -> None:
        if len(self._waiting) < MOST_WAITING:
            self._waiting.append((name, line))
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write())

    async def _write(self) -> None:
        """Until nothing is left; a disk that is slow holds no request up."""
        assert self._folder is not None
        folder = self._folder
        while self._waiting:
            lines = list(self._waiting)
            self._waiting.clear()
            try:
                await in_thread(lambda lines=lines: _append(folder, lines))  # type: ignore[misc]
            except OSError as error:
                log("trace.failed", f"traces cannot be written to --files-dir: {error}", level="ERROR")
        self._writing = None


def _append(folder: Path, lines: Sequence[tuple[str, bytes]]) -> None:
    for name, group in groupby(lines, key=lambda each: each[0]):
        with (folder / name).open("ab") as file:
            file.writelines(line for _, line in group)
