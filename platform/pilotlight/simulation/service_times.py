"""Service times and cold starts of a simulation: given, measured, or by the rates of a language model.

A profile is a JSON file of both, written by `platformctl profile`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

from msgspec import DecodeError, Meta, Struct, convert, field, json, structs, to_builtins

from pilotlight.errors import UsageError

# How a replica starts: as a new process or pod, forked from the pilot light, or from a parked process.
Start = Literal["process", "pilot-light", "parked"]
STARTS: Final[tuple[Start, ...]] = get_args(Start)
Seconds = Annotated[float, Meta(ge=0)]
Samples = tuple[Seconds, ...]
Size = Annotated[int, Meta(ge=1)]  # requests in flight, or of a batch
BySize = dict[Size, Annotated[Samples, Meta(min_length=1)]]
Rate = Annotated[float, Meta(gt=0)]  # tokens per second
HINT: Final = "platformctl profile writes one"


class LlmRates(Struct, frozen=True, rename="camel"):
    """Rates of one replica of a language model. A request holds its input and output tokens of the KV cache."""

    prefill_tokens_s: Rate = field(name="prefillTokensPerSecond")
    # Of the whole batch, by its size.
    decode_tokens_s: Annotated[dict[Size, Rate], Meta(min_length=1)] = field(name="decodeTokensPerSecond")
    kv_cache_tokens: Annotated[int, Meta(ge=0)] = 0  # 0: no limit
    max_batch: Size = 256


class ServiceTimes(Struct, frozen=True, rename="camel"):
    """How long a replica takes for its requests. A trace with its own service times wins.

    samples         of a request that runs alone, or of one whose time does not depend on others
    by_concurrency  of a request while so many are in flight in the replica
    by_batch        of one execution of so many requests, formed by the predictor's batching: at most `max_batch`
                    requests, waiting at most `batch_delay` for more
    llm             by tokens
    """

    samples: Samples = ()
    parallel: Size = 1  # executions at once in a replica: instances of the model
    by_concurrency: BySize = {}
    by_batch: BySize = {}
    max_batch: Annotated[int, Meta(ge=0)] = 0  # 0: the largest of `by_batch`
    batch_delay: Seconds = 0.0
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


class ProfileFile(Struct, rename="camel"):
    """A profile as it is written. A cold start has its phases, and their CPU time as `cpuSeconds`."""

    api_version: Literal["pilotlight.dev/v1"]
    kind: Literal["Profile"]
    service: str = ""
    measured_at: str = ""
    service_times: ServiceTimes = ServiceTimes()
    cold_starts: dict[Start, dict[str, Samples | Seconds]] = {}


@dataclass(frozen=True)
class Profile:
    """What the simulation knows about a service beside its document."""

    service_times: ServiceTimes = dataclass_field(default_factory=ServiceTimes)
    cold_starts: Mapping[Start, ColdStart] = dataclass_field(default_factory=dict)
    service: str = ""
    measured_at: str = ""

    def with_service_time(self, seconds: float) -> "Profile":
        return replace(self, service_times=ServiceTimes((seconds,), self.service_times.parallel))

    def with_parallel(self, parallel: int) -> "Profile":
        return replace(self, service_times=structs.replace(self.service_times, parallel=parallel))

    def with_cold_start(self, start: Start, seconds: float) -> "Profile":
        return replace(self, cold_starts={**self.cold_starts, start: ColdStart({"total": (seconds,)})})

    def to_dict(self) -> dict[str, Any]:
        starts: dict[Start, dict[str, Samples | float]] = {
            name: {"cpuSeconds": start.cpu_s, **start.phases} for name, start in self.cold_starts.items()
        }
        file = ProfileFile("pilotlight.dev/v1", "Profile", self.service, self.measured_at, self.service_times, starts)
        written: dict[str, Any] = to_builtins(file, str_keys=True)
        return written

    def write(self, path: Path) -> None:
        path.write_bytes(json.format(json.encode(self.to_dict())) + b"\n")


def read_profile(path: Path) -> Profile:
    """Return the profile of a file. Raise UsageError that names the file and the field."""
    try:
        document = json.decode(path.read_bytes())
        match document:
            case {"serviceTimes": {"llm": {} as rates} as times} if not rates:
                del times["llm"]
        file = convert(document, ProfileFile, strict=False, str_keys=True)  # by hand also `2.0` for a count
    except (OSError, DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not a profile: {error}", HINT) from error
    starts = {name: _cold_start(path, name, phases) for name, phases in file.cold_starts.items()}
    return Profile(file.service_times, starts, file.service, file.measured_at)


def _cold_start(path: Path, name: str, phases: dict[str, Samples | float]) -> ColdStart:
    cpu_s = phases.pop("cpuSeconds", 0.0)
    samples = {phase: each for phase, each in phases.items() if isinstance(each, tuple)}
    lengths = {len(each) for each in samples.values()}
    if isinstance(cpu_s, tuple) or len(samples) < len(phases) or len(lengths) != 1 or 0 in lengths:
        raise UsageError(f"{path}: coldStarts.{name} must be as many seconds in each phase, one a start", HINT)
    return ColdStart(samples, cpu_s)
