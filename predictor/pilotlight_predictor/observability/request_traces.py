"""Triton's trace settings and request traces: one line of JSON per sampled request.

RequestTraces stores the settings and gives each version its sampler; a sampled request carries a RequestTrace, in which
the scheduler records its execution; a thread writes the line after the response. While tracing is off a request costs
one comparison.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count, groupby
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Final, Protocol

import orjson
from msgspec import Struct

from pilotlight_predictor.core.requests import Done, InferRequest, InferResponse, Outputs
from pilotlight_predictor.core.threads import in_thread
from pilotlight_predictor.errors import BadRequest, Forbidden
from pilotlight_predictor.observability.logs import check_file_name, log, open_to_append
from pilotlight_predictor.observability.triton_trace_file import append_events, encode_events

OFF: Final = "OFF"
LEVELS: Final = (OFF, "TIMESTAMPS", "TENSORS", "MIN", "MAX")
_NUMBERS: Final = {"trace_rate": 1, "trace_count": -1, "log_frequency": 0}  # minimum of each
KEYS: Final = ("trace_file", "trace_level", *_NUMBERS)
Values = Mapping[str, Any]
DEFAULTS: Final[Values] = {
    "trace_file": "", "trace_level": (OFF,), "trace_rate": 1000, "trace_count": -1, "log_frequency": 0,
}  # fmt: skip
MAX_VALUES: Final = 1000  # of a tensor, at level TENSORS
MAX_QUEUED: Final = 1000  # lines that wait for the disk; further traces are dropped
_IDS = count(1)


class TraceSettings(Struct, frozen=True):
    """Trace settings: every `rate`-th request, up to `count` (-1: all), in files of `log_frequency` traces (0: one)."""

    file: str
    levels: tuple[str, ...]
    rate: int
    count: int
    log_frequency: int

    @property
    def active(self) -> bool:
        return bool(self.file) and self.levels != (OFF,) and self.count != 0


def trace_settings(values: Values) -> TraceSettings:
    complete = {**DEFAULTS, **values}
    return TraceSettings(*(complete[key] for key in KEYS))


def as_triton(values: Values) -> dict[str, Any]:
    """Return the settings in Triton's format: numbers are strings."""
    complete = {**DEFAULTS, **values}
    texts = {key: value if isinstance(value, str) else str(value) for key, value in complete.items()}
    return {**texts, "trace_level": list(complete["trace_level"]), "trace_mode": "triton"}


def apply_changes(values: Values, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings after changes; None resets one to its default. Raises BadRequest."""
    updated = dict(values)
    for key, value in changes.items():
        if key == "trace_mode":
            raise BadRequest("trace_mode cannot be changed: traces are written as 'triton' does, into a file")
        if key not in KEYS:
            raise BadRequest(f"unknown trace setting {key[:100]}; known: {', '.join(KEYS)}")
        if value is None:
            updated.pop(key, None)
        else:
            updated[key] = _parse_value(key, value)
    return updated


def _parse_value(key: str, value: Any) -> Any:
    if key == "trace_level":
        return _levels(value)
    if isinstance(value, list) and len(value) == 1:
        (value,) = value
    if key == "trace_file":
        check_file_name(key, value)
        return value
    least, text = _NUMBERS[key], str(value).strip()
    digits = text.removeprefix("-")
    if isinstance(value, bool) or not (digits.isascii() and digits.isdigit()) or len(digits) > 9 or int(text) < least:
        raise BadRequest(f"{key} = {str(value)[:100]!r}, must be an integer of {least} or more")
    return int(text)


def _levels(value: Any) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not all(name in LEVELS for name in names):
        raise BadRequest(f"trace_level = {value!r}, must be a list of {', '.join(LEVELS[:3])}")
    chosen = tuple(dict.fromkeys(names))
    if OFF in chosen and len(chosen) > 1:
        raise BadRequest(f"trace_level = {value!r}, cannot combine OFF with another level")
    return chosen


def at_start(options: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return the settings of `--trace-config`; several levels add up."""
    names = {"file": "trace_file", "rate": "trace_rate", "count": "trace_count", "log-frequency": "log_frequency"}
    values: dict[str, Any] = {}
    for option, text in options:
        if option == "level":
            values["trace_level"] = tuple(dict.fromkeys((*values.get("trace_level", ()), text)))
        elif (key := names.get(option)) is not None:
            values[key] = int(text) if key in _NUMBERS else text
    return values


class Sampler:
    """Choice of the requests to trace."""

    def __init__(self, settings: TraceSettings) -> None:
        self.settings = settings
        self._seen = 0
        self._left = settings.count
        self.sampled = 0

    def sample(self) -> bool:
        """Return True for every `rate`-th request, until the count is used up."""
        if self._left == 0:
            return False
        self._seen += 1
        if self._seen % self.settings.rate:
            return False
        self._left -= self._left > 0
        self.sampled += 1
        return True

    @property
    def file_name(self) -> str:
        """File of the next trace: with `log_frequency` a new one after so many traces."""
        settings = self.settings
        if not settings.log_frequency:
            return settings.file
        return f"{settings.file}.{max(0, self.sampled - 1) // settings.log_frequency}"


class TracedVersion(Protocol):
    """A model version, as far as traces need it."""

    name: str
    version: int
    sampler: "ModelSampler | None"


class RequestTrace:
    """Trace of one request. Times are nanoseconds of the monotonic clock."""

    def __init__(self, served: TracedVersion, request: InferRequest) -> None:
        self._line: dict[str, Any] = {
            "id": next(_IDS), "model_name": served.name, "model_version": served.version, "request_id": request.id,
        }  # fmt: skip
        self._times = [("REQUEST_START", perf_counter_ns())]

    def record_execution(self, queued_ns: int, started_ns: int, ended_ns: int) -> None:
        self._times += [
            ("QUEUE_START", queued_ns),
            ("COMPUTE_START", started_ns),
            ("COMPUTE_INPUT_END", started_ns),
            ("COMPUTE_OUTPUT_START", ended_ns),
            ("COMPUTE_END", ended_ns),
        ]

    def events(self, tensors: Mapping[str, Outputs] | None, error: str, *, timestamps: bool) -> bytes:
        """Return the trace in Triton's format."""
        now = perf_counter_ns()
        times = [*self._times, ("INFER_RESPONSE_COMPLETE", now), ("REQUEST_END", now)] if timestamps else []
        return encode_events(self._line, times, tensors or {}, error, MAX_VALUES)

    def line(self, tensors: Mapping[str, Outputs] | None, error: str) -> bytes:
        times = [*self._times, ("REQUEST_END", perf_counter_ns())]
        document = {**self._line, "timestamps": [{"name": name, "ns": ns} for name, ns in times]}
        if error:
            document["error"] = error
        for direction, named in (tensors or {}).items():
            document[direction] = [_tensor(name, *tensor) for name, tensor in named.items()]
        return orjson.dumps(document, default=str, option=orjson.OPT_APPEND_NEWLINE)


def _tensor(name: str, datatype: str, array: Any) -> dict[str, Any]:
    values = array.ravel()[:MAX_VALUES].tolist()
    data = [value.decode(errors="replace") if isinstance(value, bytes) else value for value in values]
    return {"name": name, "datatype": datatype, "shape": list(array.shape), "data": data}


class ModelSampler:
    """Start of traces of sampled requests. Shared by all models without settings of their own."""

    def __init__(self, sampler: Sampler, write: Callable[[str, bytes], None], *, as_triton: bool) -> None:
        self._sampler, self._write, self._as_triton = sampler, write, as_triton
        self._timestamps = sampler.settings.levels != ("TENSORS",)
        self._tensors = "TENSORS" in sampler.settings.levels

    def watch(self, served: TracedVersion, request: InferRequest, done: Done) -> Done:
        """Return `done`, extended to write the trace if the request is sampled."""
        if not self._sampler.sample():
            return done
        trace, name = RequestTrace(served, request), self._sampler.file_name
        request.trace = trace
        inputs = dict(request.inputs)

        def done_and_traced(result: InferResponse | Exception) -> None:
            done(result)
            failed = isinstance(result, Exception)
            outputs = {} if isinstance(result, Exception) else result.outputs
            tensors = {"inputs": inputs, "outputs": outputs} if self._tensors else None
            error = type(result).__name__ if failed else ""
            if self._as_triton:
                self._write(name, trace.events(tensors, error, timestamps=self._timestamps))
            else:
                self._write(name, trace.line(tensors, error))

        return done_and_traced


class RequestTraces:
    """Traces of one server. `serving` returns the serving versions; `folder`: --files-dir, empty for none.

    `options`: of --trace-config, the defaults of this server; their file may be anywhere. `as_triton`: files have
    Triton's format.
    """

    def __init__(
        self,
        serving: Callable[[], Iterable[TracedVersion]],
        folder: str,
        options: Iterable[tuple[str, str]] = (),
        *,
        as_triton: bool = False,
    ) -> None:
        self._as_triton = as_triton
        self._defaults = at_start(options)
        self._serving = serving
        self._folder = Path(folder) if folder else None
        self._all: dict[str, Any] = {}
        self._own: dict[str, dict[str, Any]] = {}
        self._samplers: dict[str, ModelSampler | None] = {}
        self._queue: deque[tuple[str, bytes]] = deque()
        self._writing: asyncio.Task[None] | None = None

    def settings(self, model: str = "") -> dict[str, Any]:
        return as_triton({**self._defaults, **self._all, **self._own.get(model, {})})

    def change(self, changes: Mapping[str, Any], model: str = "") -> dict[str, Any]:
        """Apply changes and return the settings. Raises BadRequest, or Forbidden if no file may be written."""
        updated = apply_changes(self._own.get(model, {}) if model else self._all, changes)
        if updated.get("trace_file") and self._folder is None:
            raise Forbidden("trace_file: this server does not write files (--files-dir)")
        if not model:
            self._all = updated
        elif updated:
            self._own[model] = updated
        else:
            self._own.pop(model, None)
        self._samplers.clear()
        for served in self._serving():
            self.attach(served)
        return self.settings(model)

    def attach(self, served: TracedVersion) -> None:
        """Set a version's sampler: its model's own, else the general one."""
        key = served.name if served.name in self._own else ""
        if key not in self._samplers:
            settings = trace_settings({**self._defaults, **self._all, **self._own.get(key, {})})
            sampler = ModelSampler(Sampler(settings), self._enqueue, as_triton=self._as_triton)
            self._samplers[key] = sampler if settings.active else None
        served.sampler = self._samplers[key]

    def _enqueue(self, name: str, line: bytes) -> None:
        if len(self._queue) < MAX_QUEUED:
            self._queue.append((name, line))
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write())

    async def _write(self) -> None:
        """Write until the queue is empty, in threads: a slow disk delays no request."""
        folder = self._folder or Path()  # the file of --trace-config needs no folder
        while self._queue:
            lines = list(self._queue)
            self._queue.clear()
            try:
                await in_thread(lambda lines=lines: _append(folder, lines, self._as_triton))  # type: ignore[misc]
            except OSError as error:
                log("trace.failed", f"traces cannot be written: {error}", level="ERROR")
        self._writing = None


def _append(folder: Path, lines: Sequence[tuple[str, bytes]], as_triton: bool) -> None:
    for name, group in groupby(lines, key=lambda each: each[0]):
        if as_triton:
            append_events(folder / name, [events for _, events in group])
            continue
        with open(open_to_append(folder / name), "ab") as file:
            file.writelines(line for _, line in group)
