"""Service times and cold starts of a simulation: given, measured, or by the rates of a language model.

A profile is a JSON file of both, written by `platformctl profile`.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, get_args

from pilotlight.errors import UsageError

API_VERSION: Final = "pilotlight.dev/v1"
KIND: Final = "Profile"
# How a replica starts: as a new process or pod, forked from the pilot light, or from a parked process.
Start = Literal["process", "pilot-light", "parked"]
STARTS: Final[tuple[Start, ...]] = get_args(Start)
Samples = tuple[float, ...]  # seconds
Json = Any


@dataclass(frozen=True)
class LlmRates:
    """Rates of one replica of a language model. A request holds its input and output tokens of the KV cache."""

    prefill_tokens_s: float
    decode_tokens_s: Mapping[int, float]  # of the whole batch, by its size
    kv_cache_tokens: int = 0  # 0: no limit
    max_batch: int = 256


@dataclass(frozen=True)
class ServiceTimes:
    """How long a replica takes for its requests. A trace with its own service times wins.

    samples         of a request that runs alone, or of one whose time does not depend on others
    by_concurrency  of a request while so many are in flight in the replica
    by_batch        of one execution of so many requests, formed by the predictor's batching: at most `max_batch`
                    requests, waiting at most `batch_delay` for more
    llm             by tokens
    """

    samples: Samples = ()
    parallel: int = 1  # executions at once in a replica: instances of the model
    by_concurrency: Mapping[int, Samples] = field(default_factory=dict)
    by_batch: Mapping[int, Samples] = field(default_factory=dict)
    max_batch: int = 0  # 0: the largest of `by_batch`
    batch_delay: float = 0.0
    llm: LlmRates | None = None


@dataclass(frozen=True)
class ColdStart:
    """Seconds of a start by phase, measured at several starts: entry i of every phase belongs to start i.

    `cpu_s`: CPU time that it takes, for which starts at once compete.
    """

    phases: Mapping[str, Samples]
    cpu_s: float = 0.0

    @property
    def totals(self) -> Samples:
        """Seconds of each measured start."""
        return tuple(sum(each) for each in zip(*self.phases.values(), strict=True))


@dataclass(frozen=True)
class Profile:
    """What the simulation knows about a service beside its document."""

    service_times: ServiceTimes = field(default_factory=ServiceTimes)
    cold_starts: Mapping[Start, ColdStart] = field(default_factory=dict)
    service: str = ""
    measured_at: str = ""

    def with_service_time(self, seconds: float) -> "Profile":
        return replace(self, service_times=ServiceTimes((seconds,), self.service_times.parallel))

    def with_parallel(self, parallel: int) -> "Profile":
        return replace(self, service_times=replace(self.service_times, parallel=parallel))

    def with_cold_start(self, start: Start, seconds: float) -> "Profile":
        return replace(self, cold_starts={**self.cold_starts, start: ColdStart({"total": (seconds,)})})

    def to_dict(self) -> dict[str, Json]:
        times = self.service_times
        written: dict[str, Json] = {
            "samples": list(times.samples),
            "parallel": times.parallel,
            "byConcurrency": {str(level): list(samples) for level, samples in times.by_concurrency.items()},
            "byBatch": {str(size): list(samples) for size, samples in times.by_batch.items()},
            "maxBatch": times.max_batch,
            "batchDelay": times.batch_delay,
        }
        if times.llm is not None:
            rates = asdict(times.llm)
            written["llm"] = {
                "prefillTokensPerSecond": rates["prefill_tokens_s"],
                "decodeTokensPerSecond": {str(size): rate for size, rate in rates["decode_tokens_s"].items()},
                "kvCacheTokens": rates["kv_cache_tokens"],
                "maxBatch": rates["max_batch"],
            }
        starts = {
            name: {"cpuSeconds": start.cpu_s, **{phase: list(s) for phase, s in start.phases.items()}}
            for name, start in self.cold_starts.items()
        }
        head = {"apiVersion": API_VERSION, "kind": KIND, "service": self.service, "measuredAt": self.measured_at}
        return {**head, "serviceTimes": written, "coldStarts": starts}

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(self.to_dict(), indent=2) + "\n", encoding="utf-8")


def read_profile(path: Path) -> Profile:
    """Return the profile of a file. Raise UsageError that names the file and the field."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: it cannot be read as JSON: {error}", "platformctl profile writes one") from error
    if not isinstance(document, dict) or (document.get("apiVersion"), document.get("kind")) != (API_VERSION, KIND):
        raise UsageError(f"{path}: is not a {KIND} of {API_VERSION}", "platformctl profile writes one")
    return _Reader(path).profile(document)


class _Reader:
    """Reads the fields of a profile; an error names file, field and what it must be."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def _error(self, name: str, must: str) -> UsageError:
        return UsageError(f"{self._path}: {name} must be {must}")

    def profile(self, document: Mapping[str, Json]) -> Profile:
        times = self._mapping(document, "serviceTimes")
        starts = self._mapping(document, "coldStarts")
        if unknown := set(starts) - set(STARTS):
            raise self._error(f"coldStarts.{min(unknown)}", f"one of {', '.join(STARTS)}")
        service_times = ServiceTimes(
            self._samples(times.get("samples", []), "serviceTimes.samples"),
            int(self._number(times, "parallel", 1, least=1)),
            self._by_size(times, "byConcurrency"),
            self._by_size(times, "byBatch"),
            int(self._number(times, "maxBatch", 0)),
            self._number(times, "batchDelay", 0),
            self._llm(self._mapping(times, "llm")),
        )
        cold_starts = {name: self._cold_start(starts[name], name) for name in STARTS if name in starts}
        return Profile(
            service_times, cold_starts, str(document.get("service", "")), str(document.get("measuredAt", ""))
        )

    def _llm(self, rates: Mapping[str, Json]) -> LlmRates | None:
        if not rates:
            return None
        decode = {
            int(size): self._number({size: rate}, size, None, least=1e-9)
            for size, rate in self._mapping(rates, "decodeTokensPerSecond").items()
        }
        if not decode:
            raise self._error("llm.decodeTokensPerSecond", "rates of the whole batch by its size: {1: 60, 8: 320}")
        return LlmRates(
            self._number(rates, "prefillTokensPerSecond", None, least=1e-9), decode,
            int(self._number(rates, "kvCacheTokens", 0)), int(self._number(rates, "maxBatch", 256, least=1)),
        )  # fmt: skip

    def _cold_start(self, phases: Json, name: str) -> ColdStart:
        if not isinstance(phases, Mapping) or not phases:
            raise self._error(f"coldStarts.{name}", "seconds by phase")
        cpu_s = self._number(phases, "cpuSeconds", 0)
        timed = {phase: values for phase, values in phases.items() if phase != "cpuSeconds"}
        samples = {phase: self._samples(values, f"coldStarts.{name}.{phase}") for phase, values in timed.items()}
        if len({len(each) for each in samples.values()}) != 1 or not all(samples.values()):
            raise self._error(f"coldStarts.{name}", "as many seconds in each phase, one a start")
        return ColdStart(samples, cpu_s)

    def _by_size(self, values: Mapping[str, Json], name: str) -> dict[int, Samples]:
        table = self._mapping(values, name)
        if not all(size.isdigit() and int(size) > 0 for size in table):
            raise self._error(f"serviceTimes.{name}", "seconds by a whole number from 1")
        result = {int(size): self._samples(samples, f"serviceTimes.{name}.{size}") for size, samples in table.items()}
        if not all(result.values()):
            raise self._error(f"serviceTimes.{name}", "at least one time for each number")
        return dict(sorted(result.items()))

    def _mapping(self, values: Mapping[str, Json], name: str) -> Mapping[str, Json]:
        value = values.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise self._error(name, "a mapping")
        return value or {}

    def _samples(self, values: Json, name: str) -> Samples:
        if not isinstance(values, list) or not all(isinstance(each, int | float) and each >= 0 for each in values):
            raise self._error(name, "a list of seconds, none of them negative")
        return tuple(map(float, values))

    def _number(self, values: Mapping[str, Json], name: str, default: float | None, least: float = 0.0) -> float:
        value = values.get(name, default)
        if not isinstance(value, int | float) or not value >= least:
            raise self._error(name, f"a number from {least:g}")
        return float(value)
