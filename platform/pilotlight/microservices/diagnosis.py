"""Diagnosis of a microservice: a table of rules over evidence, each with a likely cause and advice.

`Evidence` combines platform, server and log; `diagnose` applies the rules; diagnosis.yaml has their texts and patterns.
Used by `platformctl microservice status`, by `doctor`, and by the API for status and 503 responses.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from pilotlight.microservices.registry.records import PlatformStatus
from pilotlight.targets.error_from_log import log_record

MAX_LINE: Final = 300
SLOW_DOWNLOAD_S: Final = 60.0  # shorter downloads are normal
SILENT_S: Final = 60.0  # on a busy machine imports alone may take long
LONG_LOAD_S: Final = 300.0
STUCK_STOP_S: Final = 60.0  # a predictor drains within 30
STARTING: Final = ("initializing", "loading")
LEAST_CPUS: Final = 0.5
MEMORY_FACTOR: Final = 1.2  # a model takes more memory than its files take disk


class Evidence(Struct, frozen=True, kw_only=True):
    """Facts about a microservice; a default means unknown. Times in seconds, sizes in bytes."""

    job_id: str = "JOB_ID"
    phase: str = ""  # initializing, loading, ready, failed, stopping
    phase_s: float = 0.0  # time in this phase
    silent_s: float = 0.0  # time without a response
    platform: PlatformStatus | None = None
    status: Mapping[str, Any] = {}  # the predictor's /status
    errors: tuple[str, ...] = ()  # errors of start, load, stop or the last request
    rejected: str = ""  # why the last request was rejected (400)
    rejected_media: bool = False  # it was for its media
    operations: tuple[str, ...] = ()  # running operations
    over_http: bool = False  # the reader uses the API, not the command line
    cpus: float | None = None
    memory: int | None = None


class Advice(Struct, frozen=True):
    """One likely cause of a problem, with advice; `name` is stable, for programs."""

    name: str
    cause: str
    advice: str


class Finding(Struct, frozen=True, forbid_unknown_fields=True):
    """Entry of diagnosis.yaml."""

    cause: str
    advice: str
    patterns: tuple[str, ...] = ()
    unless: str = ""


Rule = Callable[[Evidence], Iterator[Advice]]


def diagnose(evidence: Evidence) -> tuple[Advice, ...]:
    """Return all findings, the most certain first."""
    if evidence.platform is not None and evidence.platform.state == "unknown":  # nothing else is known
        return (_advice("platform_unreachable", evidence, reason=evidence.platform.reason),)
    if evidence.phase == "stopping":
        return tuple(_cannot_stop(evidence))
    return tuple(finding for rule in RULES for finding in rule(evidence))


def _advice(name: str, evidence: Evidence, **values: Any) -> Advice:
    """Return the finding of this name with its values in the texts."""
    logs = f"platformctl microservice logs {evidence.job_id} shows why"
    if evidence.over_http:
        logs = f"GET …/jobs/{evidence.job_id}/inference_microservice/logs shows why"
    values |= {"job_id": evidence.job_id, "logs": logs}
    finding = _findings()[name]
    return Advice(name, finding.cause.format_map(values), finding.advice.format_map(values))


def _symptom_rule(name: str) -> Rule:
    """Return the rule that matches a finding's patterns in errors and logs."""

    def rule(evidence: Evidence) -> Iterator[Advice]:
        lines, unless = _messages(evidence), _findings()[name].unless
        if (line := first_match(name, lines)) and not (unless and first_match(unless, lines)):
            yield _advice(name, evidence, line=line)

    return rule


def _small_memory(evidence: Evidence) -> Iterator[Advice]:
    """Compare the model's size with the memory, before an error occurs.

    Not while it loads: the memory that it already uses is missing from what is available.
    """
    reported = any(first_match(name, _messages(evidence)) for name in ("cuda_out_of_memory", "out_of_memory"))
    size = int((evidence.status.get("progress") or {}).get("total_bytes") or 0)
    if reported or evidence.phase not in ("initializing", "failed") or evidence.memory is None:
        return
    if size * MEMORY_FACTOR > evidence.memory:
        yield Advice(
            "out_of_memory",
            f"the model's files have {_size(size)} and it may use {_size(evidence.memory)} of memory",
            f"give it at least {_size(int(size * MEMORY_FACTOR))}, or use a smaller model",
        )


def _too_few_resources(evidence: Evidence) -> Iterator[Advice]:
    reason = evidence.platform.reason if evidence.platform and evidence.platform.state == "pending" else ""
    if line := first_match("no_room", (reason,)):
        yield _advice("no_room", evidence, line=line)
    if evidence.cpus is not None and evidence.cpus < LEAST_CPUS and evidence.phase in STARTING:
        yield _advice("too_few_cpus", evidence, cpus=evidence.cpus, least=LEAST_CPUS)


def _crashed(evidence: Evidence) -> Iterator[Advice]:
    """Detect a process that has ended or does not respond, for which the API would return 202 forever."""
    platform = evidence.platform or PlatformStatus("running")
    looping = "CrashLoopBackOff" in f"{platform.pod_status} {platform.reason}"
    if looping or platform.state in {"failed", "gone", "stopped"}:
        yield _advice("crashed", evidence, reason=platform.reason or f"its state is {platform.pod_status}")
    elif evidence.phase == "initializing" and evidence.silent_s > SILENT_S:
        yield _advice("silent", evidence, seconds=evidence.silent_s)


def _slow_download(evidence: Evidence) -> Iterator[Advice]:
    progress = evidence.status.get("progress") or {}
    done, total = int(progress.get("done_bytes") or 0), int(progress.get("total_bytes") or 0)
    if evidence.phase not in STARTING or evidence.phase_s < SLOW_DOWNLOAD_S or not progress or 0 <= total <= done:
        return
    rate = done / evidence.phase_s
    left = f", about {(total - done) / rate:.0f} s to go" if rate and total > 0 else ""
    of_total = f" of {_size(total)}" if total > 0 else ""
    yield _advice("slow_download", evidence, progress=f"{_size(done)}{of_total} in {evidence.phase_s:.0f} s{left}")


def _long_load(evidence: Evidence) -> Iterator[Advice]:
    if evidence.phase == "loading" and evidence.phase_s > LONG_LOAD_S and not any(_slow_download(evidence)):
        yield _advice("long_load", evidence, seconds=evidence.phase_s)


def _cannot_stop(evidence: Evidence) -> Iterator[Advice]:
    if evidence.phase_s < STUCK_STOP_S and not evidence.errors:
        return
    pending = f": {', '.join(evidence.operations)} is still running" if evidence.operations else ""
    why = f"; {evidence.errors[0]}" if evidence.errors else ""
    steps = "wait for the running operations and stop it again" if pending else "stop it again"
    if evidence.platform and evidence.platform.pod_name:
        steps += f"; kubectl get statefulsets,pods shows what holds {evidence.platform.pod_name}"
    yield _advice("cannot_stop", evidence, seconds=evidence.phase_s, pending=pending, why=why, steps=steps)


def _wrong_request(evidence: Evidence) -> Iterator[Advice]:
    """Report a rejected request, unless a store refused its media: that has its own rule."""
    reason = "" if _denied(evidence) else evidence.rejected or first_match("wrong_parameters", evidence.errors)
    problem = "the last request was refused" if evidence.rejected else "the request does not fit the model"
    if reason:
        name = "wrong_media" if evidence.rejected_media else "wrong_parameters"
        yield _advice(name, evidence, problem=problem, reason=reason)


RULES: Final[tuple[Rule, ...]] = (
    *map(_symptom_rule, ("cuda_out_of_memory", "out_of_memory")),
    _small_memory,
    _too_few_resources,
    *map(_symptom_rule, ("storage_denied", "storage_unreachable", "missing_file", "bad_format")),
    _wrong_request,
    _crashed,
    _slow_download,
    _long_load,
)


@cache
def _findings() -> dict[str, Finding]:
    return msgspec.yaml.decode(Path(__file__).with_suffix(".yaml").read_bytes(), type=dict[str, Finding])


@cache
def _pattern(name: str) -> re.Pattern[str]:
    return re.compile("|".join(_findings()[name].patterns), re.IGNORECASE)


def first_match(name: str, lines: Iterable[str]) -> str:
    """Return the first line, shortened, that the finding's patterns match; empty where none does."""
    return next((line[:MAX_LINE] for line in lines if _pattern(name).search(line)), "")


def message(line: str) -> str:
    """Return the message of a log line: of the JSON log schema, empty below WARNING, else the line."""
    document = log_record(line)
    if document is None or "message" not in document:
        return line.strip()
    names = () if document.get("level") in ("DEBUG", "INFO") else ("message", "exception")
    return " ".join(str(document[name]) for name in names if document.get(name))


def _messages(evidence: Evidence) -> tuple[str, ...]:
    """Return all messages: errors, the platform's reason, the end of the log, latest first.

    A ready model has recovered from what its log reports, so platform and log are left out.
    """
    lines = [*evidence.errors, _denied(evidence), str(evidence.status.get("reason") or "")]
    if evidence.platform and evidence.phase != "ready":
        lines += evidence.platform.reason, *reversed(evidence.platform.tail)
    return tuple(text for line in lines if (text := message(line)))


def _denied(evidence: Evidence) -> str:
    """Return the store's refusal of media of the last request, or empty."""
    return first_match("storage_denied", (evidence.rejected,))


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
