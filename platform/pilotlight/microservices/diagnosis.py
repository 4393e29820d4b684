"""Diagnosis of a microservice: a table of rules over evidence, each with a likely cause and advice. Pure.

`Evidence` combines platform, server and log; `diagnose` applies the rules. Used by `platformctl microservice status`,
by `doctor`, and by the API for status and 503 responses. symptoms.py has the rules that match text only.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from pilotlight.microservices import symptoms
from pilotlight.microservices.model import PlatformStatus
from pilotlight.microservices.symptoms import Symptom

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
    operations: tuple[str, ...] = ()  # running operations
    cpus: float | None = None
    memory: int | None = None


class Finding(Struct, frozen=True):
    """One finding. `name` is stable, for programs; `cause` and `advice` are sentences for users."""

    name: str
    cause: str
    advice: str


Rule = Callable[[Evidence], Iterator[Finding]]


def diagnose(evidence: Evidence) -> tuple[Finding, ...]:
    """Return all findings, the most certain first."""
    if evidence.platform is not None and evidence.platform.state == "unknown":
        return (_platform_unreachable(evidence.job_id, evidence.platform),)
    if evidence.phase == "stopping":
        return tuple(_cannot_stop(evidence))
    return tuple(finding for rule in RULES for finding in rule(evidence))


def _platform_unreachable(job_id: str, status: PlatformStatus) -> Finding:
    """Return the only finding of an unreachable platform: nothing else is known."""
    forget = f"where it is gone, platformctl microservice stop {job_id} --forget takes it off the registry"
    return Finding("platform_unreachable", status.reason, f"see to the platform and look again; {forget}")


def _symptom_rule(symptom: Symptom) -> Rule:
    """Return the rule that matches a symptom's pattern in errors and logs."""

    def rule(evidence: Evidence) -> Iterator[Finding]:
        lines = _messages(evidence)
        if symptom.unless is not None and symptoms.first_match(symptom.unless, lines):
            return
        if line := symptoms.first_match(symptom.words, lines):
            yield Finding(symptom.name, f"{symptom.cause}: {line}", symptom.advice)

    return rule


def _small_memory(evidence: Evidence) -> Iterator[Finding]:
    """Compare the model's size with the memory, before an error occurs.

    Not while it loads: the memory that it already uses is missing from what is available.
    """
    reported = any(
        symptoms.first_match(pattern, _messages(evidence)) for pattern in (symptoms.CUDA_MEMORY, symptoms.HOST_MEMORY)
    )
    size = int((evidence.status.get("progress") or {}).get("total_bytes") or 0)
    if (
        not reported
        and evidence.phase in ("initializing", "failed")
        and evidence.memory is not None
        and size * MEMORY_FACTOR > evidence.memory
    ):
        yield Finding(
            "out_of_memory",
            f"the model's files have {_size(size)} and it may use {_size(evidence.memory)} of memory",
            f"give it at least {_size(int(size * MEMORY_FACTOR))}, or use a smaller model",
        )


def _too_few_resources(evidence: Evidence) -> Iterator[Finding]:
    reason = evidence.platform.reason if evidence.platform and evidence.platform.state == "pending" else ""
    if line := symptoms.first_match(symptoms.NO_CAPACITY, (reason,)):
        yield Finding(
            "no_room",
            f"the platform has no room for it: {line}",
            "free what others hold, ask for fewer CPUs, GPUs or less memory, or add a node",
        )
    if evidence.cpus is not None and evidence.cpus < LEAST_CPUS and evidence.phase in STARTING:
        yield Finding(
            "too_few_cpus",
            f"it may use {evidence.cpus:g} CPUs, and loading a model takes more than {LEAST_CPUS:g}",
            "give it at least one CPU",
        )


def _crashed(evidence: Evidence) -> Iterator[Finding]:
    """Detect a process that has ended or does not respond, for which the API would return 202 forever."""
    ended = evidence.platform is not None and evidence.platform.state in {"failed", "gone", "stopped"}
    looping = (
        evidence.platform is not None
        and "CrashLoopBackOff" in f"{evidence.platform.pod_status} {evidence.platform.reason}"
    )
    if evidence.platform is not None and (ended or looping) and evidence.phase != "stopping":
        reason = evidence.platform.reason or f"its state is {evidence.platform.pod_status or evidence.platform.state}"
        yield Finding(
            "crashed", f"it ended after its start: {reason}", f"{_logs(evidence)}; then stop it and start it again"
        )
    elif evidence.phase == "initializing" and evidence.silent_s > SILENT_S:
        yield Finding(
            "silent",
            f"it runs and has not answered for {evidence.silent_s:.0f} s",
            f"{_logs(evidence)}; it may hang: stop it and start it again",
        )


def _slow_download(evidence: Evidence) -> Iterator[Finding]:
    progress = evidence.status.get("progress") or {}
    done, total = int(progress.get("done_bytes") or 0), int(progress.get("total_bytes") or 0)
    if evidence.phase not in STARTING or evidence.phase_s < SLOW_DOWNLOAD_S or not progress or 0 <= total <= done:
        return
    rate = done / evidence.phase_s
    left = f", about {(total - done) / rate:.0f} s to go" if rate and total > 0 else ""
    of_total = f" of {_size(total)}" if total > 0 else ""
    yield Finding(
        "slow_download",
        f"its model is on its way: {_size(done)}{of_total} in {evidence.phase_s:.0f} s{left}",
        "wait, or check the bandwidth to the storage; a store in the same region, or a copy on a volume, is quicker",
    )


def _long_load(evidence: Evidence) -> Iterator[Finding]:
    if evidence.phase == "loading" and evidence.phase_s > LONG_LOAD_S and not any(_slow_download(evidence)):
        yield Finding(
            "long_load",
            f"its model has been loading for {evidence.phase_s:.0f} s",
            f"very large models take minutes: wait longer; {_logs(evidence)} whether it goes on",
        )


def _cannot_stop(evidence: Evidence) -> Iterator[Finding]:
    if evidence.phase_s < STUCK_STOP_S and not evidence.errors:
        return
    pending = f": {', '.join(evidence.operations)} still goes on" if evidence.operations else ""
    why = f"; {evidence.errors[0]}" if evidence.errors else ""
    held = (
        f"kubectl get statefulsets,pods shows what holds {evidence.platform.pod_name}"
        if evidence.platform and evidence.platform.pod_name
        else ""
    )
    first = "wait for what goes on and stop it once more" if pending else "stop it once more"
    advice = "; ".join(filter(None, (first, held)))
    yield Finding(
        "cannot_stop",
        f"it has been stopping for {evidence.phase_s:.0f} s{pending}{why}",
        f"{advice}; on Kubernetes `kubectl delete statefulset` of its name takes it away by hand",
    )


def _wrong_parameters(evidence: Evidence) -> Iterator[Finding]:
    """Report a rejected request, unless a store refused its media: that has its own rule."""
    reason = (
        "" if _denied(evidence) else evidence.rejected or symptoms.first_match(symptoms.PARAMETERS, evidence.errors)
    )
    if reason:
        yield Finding(
            "wrong_parameters",
            f"the last request was refused: {reason}"
            if evidence.rejected
            else f"the request does not fit the model: {reason}",
            "compare it with what the model takes: parameters of its kind, the size and type of its inputs",
        )


RULES: Final[tuple[Rule, ...]] = (
    *map(_symptom_rule, symptoms.OF_MEMORY),
    _small_memory,
    _too_few_resources,
    *map(_symptom_rule, symptoms.OF_STORAGE),
    _wrong_parameters,
    _crashed,
    _slow_download,
    _long_load,
)


def _messages(evidence: Evidence) -> tuple[str, ...]:
    """Return all messages: errors, the platform's reason, the end of the log, latest first.

    A ready model has recovered from what its log reports, so platform and log are left out.
    """
    platform = (
        (evidence.platform.reason, *reversed(evidence.platform.tail))
        if evidence.platform and evidence.phase != "ready"
        else ()
    )
    server = str(evidence.status.get("reason") or "")
    return tuple(
        text for line in (*evidence.errors, _denied(evidence), server, *platform) if (text := symptoms.message(line))
    )


def _denied(evidence: Evidence) -> str:
    """Return the store's refusal of media of the last request, or empty."""
    return symptoms.first_match(symptoms.DENIED, (evidence.rejected,))


def _logs(evidence: Evidence) -> str:
    return f"platformctl microservice logs {evidence.job_id} shows why"


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
