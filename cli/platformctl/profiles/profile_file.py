"""Profiles of `platformctl profile --write`: a copy of the service is deployed, loaded, woken and deleted again."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import structs

from pilotlight.errors import PlatformError, UsageError
from pilotlight.k8s.timestamps import utc_now
from pilotlight.sdk import verbs
from pilotlight.simulation.service_times import LlmRates, Profile, ServiceTimes, Start
from platformctl import output
from platformctl.profiles import llm_measurement
from platformctl.profiles import profile_measurement as measurement
from platformctl.profiles.profile_measurement import Level, Measured, Request
from platformctl.targets import EMBEDDED, Gateway, ServiceOptions

if TYPE_CHECKING:
    from pilotlight.targets.target import Key, Target

SUFFIX: Final = "-profile"
BATCHES: Final = (1, 2, 4, 8, 16, 32, 64)
MAX_CLIENTS: Final = 256
# The copy scales to zero soon after its requests, so that cold starts take seconds to measure.
WINDOW: Final = 'metadata.annotations["autoscaling.knative.dev/window"]'


class MeasurementOptions(NamedTuple):
    file: Path
    document: str | None
    data: str | None
    concurrency: str
    cold_starts: int
    seconds: float

    def levels(self) -> list[int]:
        try:
            levels = sorted({int(level) for level in self.concurrency.split(",")})
        except ValueError:
            levels = [0]
        if not 1 <= levels[0] <= levels[-1] <= MAX_CLIENTS:
            raise UsageError(f"--concurrency is {self.concurrency}, must be numbers from 1 to {MAX_CLIENTS}: 1,2,4,8")
        return levels

    def values(self) -> Any:
        """Return the input; None: zeros by the model's metadata."""
        try:
            return None if self.data is None else json.loads(output.stdin().read() if self.data == "-" else self.data)
        except ValueError as error:
            raise UsageError(f"--data is not JSON: {error}") from None


def write_measured(service_options: ServiceOptions, name: str | None, options: MeasurementOptions) -> None:
    """Measure a copy of a service, or of the document, delete the copy, write the profile and print a summary."""
    if (name is None) == (options.document is None):
        raise UsageError("profile --write needs a NAME, or the file of an InferenceService: -f FILE")
    if service_options.target not in EMBEDDED:
        hint = "measure it with --target local, or use its metrics: --from-metrics"
        raise UsageError(f"a profile is measured on one machine, and the target is {service_options.target}", hint)
    levels, values = options.levels(), options.values()
    key, what, component = _source(service_options, name, options.document)
    copy = key[0], f"{key[1][: 63 - len(SUFFIX)]}{SUFFIX}"
    target_name = service_options.target
    common: verbs.CommonOptions = {"target": target_name, "namespace": key[0], "progress": lambda line: None}
    sets = {
        "metadata.name": copy[1], WINDOW: "6s", f"spec.{component}.minReplicas": 0, f"spec.{component}.maxReplicas": 1,
        f"spec.{component}.containerConcurrency": None,
    }  # fmt: skip
    progress = output.ProgressLog()
    progress.log("Deploying", f"{copy[1]}, a copy with one replica")
    verbs.delete(copy[1], missing_ok=True, **common)
    try:
        verbs.deploy(what, sets=sets, **common)
        target = service_options.connect()
        status = target.status(copy)
        with target.open_route(status) as route:
            measured = Measured(Gateway(route.url, route.headers), copy[1], values)
            profile = _measured(target, copy, measured, options, levels, progress)
    finally:
        verbs.delete(copy[1], missing_ok=True, **common)
    write(replace(profile, service=key[1]), options.file)


def _measured(
    target: "Target", copy: "Key", measured: Measured, options: MeasurementOptions, levels: list[int],
    progress: output.ProgressLog,
) -> Profile:  # fmt: skip
    """Measure concurrency, batches and cold starts of the copy, in this order: it ends at zero."""
    with target.open_route(target.status(copy)) as route:
        model = llm_measurement.LanguageModel(route.url, route.headers)
        if model.find():
            page = measured.gateway.request("GET", "/metrics").body.decode(errors="replace")
            rates = llm_measurement.rates(model, levels, options.seconds, lambda what: progress.log("Measuring", what))
            cache, most = llm_measurement.kv_cache_tokens(page), measured.max_sequences() or rates.max_batch
            rates = structs.replace(rates, kv_cache_tokens=cache, max_batch=most)
            starts = _cold_starts(target, copy, measured, model.request(), options.cold_starts, progress)
            return Profile(ServiceTimes(llm=rates), measurement.grouped(starts), "", utc_now())
    batching = measured.batching()
    with target.open_route(target.status(copy)) as route:
        single = measured.request()
        measurement.load(route.url, route.headers, single, 1, 0.0)  # the first request is not like the others

        def level(clients: int, batch: int) -> Level:
            progress.log("Measuring", f"{clients} concurrent requests" if batch == 1 else f"requests of {batch} rows")
            return measurement.load(route.url, route.headers, measured.request(batch), clients, options.seconds)

        by_concurrency = {clients: level(clients, 1) for clients in levels}
        sizes = [size for size in BATCHES if size <= batching.max_batch]
        by_batch = {size: level(1, size) for size in sizes}
    starts = _cold_starts(target, copy, measured, single, options.cold_starts, progress)
    times = measurement.service_times(by_concurrency, by_batch, batching)
    return Profile(times, measurement.grouped(starts), "", utc_now())


def _cold_starts(
    target: "Target", copy: "Key", measured: Measured, request: Request, count: int, progress: output.ProgressLog
) -> list[tuple[Start, dict[str, float]]]:
    """Measure so many, and add the one of the deploy if it is of a kind of its own."""
    deployed, starts = measurement.newest(target.status(copy)), []
    for number in range(count):
        progress.log("Measuring", f"cold start {number + 1} of {count}")
        starts.append(measurement.cold_start(target, copy, measured, request))
    kind = measurement.start_kind(deployed)
    if kind not in {each for each, _ in starts} and deployed.cold_start:
        starts.append((kind, measurement.phases_of(deployed.cold_start, 0.0)))
    return starts


def write_from_metrics(service_options: ServiceOptions, name: str, file: Path) -> None:
    key, target = service_options.key(name), service_options.connect_read_only()
    times, starts = measurement.from_metrics(target, key)
    write(Profile(times, starts, key[1], utc_now()), file)


def write(profile: Profile, file: Path) -> None:
    """Write the profile and print what is in it."""
    try:
        profile.write(file)
    except OSError as error:
        raise PlatformError(f"{file} cannot be written: {error.strerror}") from error
    rows = [("LEVEL", "SAMPLES", "P50", "P99"), *rows_of(profile)]
    rates = profile.service_times.llm
    lines = [*output.columns(rows, indent=""), *(output.columns(rate_rows(rates), indent="") if rates else ())]
    output.data(profile.to_dict(), lines)
    output.note(f"written to {file}; platformctl simulate --profile {shlex.quote(str(file))} uses it")


def rows_of(profile: Profile) -> list[tuple[str, str, str, str]]:
    times = profile.service_times
    levels = {"alone" if times.parallel == 1 else f"alone, {times.parallel} at once": times.samples}
    levels |= {f"{clients} concurrent": samples for clients, samples in times.by_concurrency.items()}
    levels |= {f"batch of {size}": samples for size, samples in times.by_batch.items()}
    levels |= {f"cold start, {kind}": start.totals for kind, start in profile.cold_starts.items()}
    return [(name, str(len(samples)), *_quantiles(sorted(samples))) for name, samples in levels.items() if samples]


def rate_rows(rates: LlmRates) -> list[tuple[str, str]]:
    rows = [("prompts", f"{rates.prefill_tokens_s:.4g} tokens/s")]
    rows += [(f"{size} streams", f"{rate:.4g} tokens/s") for size, rate in rates.decode_tokens_s.items()]
    return [*rows, ("KV cache", f"{rates.kv_cache_tokens} tokens" if rates.kv_cache_tokens else "size not known")]


def _quantiles(ordered: Sequence[float]) -> tuple[str, str]:
    median, tail = (ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.5, 0.99))
    return f"{1000 * median:.1f} ms", f"{1000 * tail:.1f} ms"


def _source(service_options: ServiceOptions, name: str | None, document: str | None) -> tuple["Key", str, str]:
    """Return the key of the service, what to deploy, and its component."""
    if document is None:
        assert name is not None
        key = service_options.key(name)
        roles = {each.role for each in service_options.connect_running().status(key).revisions}
        return key, f"{key[0]}/{key[1]}", "engine" if "engine" in roles else "predictor"
    import yaml

    try:
        first: Any = next((each for each in yaml.safe_load_all(Path(document).read_text()) if each), {})
        metadata, spec = first["metadata"], first["spec"]
        key = str(metadata.get("namespace") or service_options.namespace), str(metadata["name"])
    except (OSError, yaml.YAMLError, AttributeError, KeyError, TypeError) as error:
        raise UsageError(f"{document} is no InferenceService: {error!r}", "platformctl validate -f FILE") from None
    return key, document, "engine" if "engine" in spec else "predictor"
