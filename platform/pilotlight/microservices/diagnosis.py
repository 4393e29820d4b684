"""What is likely wrong with a microservice, and what to do: a table of rules over what is known of it. Pure.

Platform, server and log each tell a part: `Evidence` puts the parts together, `findings` reads them. Asked by
`platformctl microservice status`, by `doctor`, and by the API for its status and for the text of a 503. What words
alone tell is a table in symptoms.py.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from pilotlight.microservices import symptoms
from pilotlight.microservices.model import Seen
from pilotlight.microservices.symptoms import Symptom

SLOW_DOWNLOAD_S: Final = 60.0  # before that a download is no cause for worry
SILENT_S: Final = 60.0  # a busy machine imports slowly; longer than this nobody is there
LONG_LOAD_S: Final = 300.0
STUCK_STOP_S: Final = 60.0  # a predictor finishes what it has in flight within 30
STARTING: Final = ("initializing", "loading")
LEAST_CPUS: Final = 0.5
ROOM: Final = 1.2  # a model takes more memory than its files take disk


class Evidence(Struct, frozen=True, kw_only=True):
    """Whatever is known; a field left as it is is not known. Times are seconds, sizes bytes."""

    job_id: str = "JOB_ID"
    phase: str = ""  # initializing, loading, ready, failed, stopping
    phase_s: float = 0.0  # how long it has been in this phase
    silent_s: float = 0.0  # for how long nobody has answered at its address
    seen: Seen | None = None
    status: Mapping[str, Any] = {}  # the predictor's /status
    errors: tuple[str, ...] = ()  # of start, load, stop or the last request
    rejected: str = ""  # why the last request was refused (400)
    operations: tuple[str, ...] = ()  # what still goes on for it
    cpus: float | None = None
    memory: int | None = None


class Finding(Struct, frozen=True):
    """`name` is stable, for programs; `cause` and `advice` are sentences for people."""

    name: str
    cause: str
    advice: str


Rule = Callable[[Evidence], Iterator[Finding]]


def findings(of: Evidence) -> tuple[Finding, ...]:
    """Those that hold, the surest first; nothing where all is well."""
    if of.seen is not None and of.seen.state == "unknown":
        return (_unasked(of.job_id, of.seen),)
    if of.phase == "stopping":
        return tuple(_cannot_stop(of))
    return tuple(found for rule in RULES for found in rule(of))


def _unasked(job_id: str, seen: Seen) -> Finding:
    """Whether it runs is not known then, so nothing else can be told."""
    forget = f"where it is gone, platformctl microservice stop {job_id} --forget takes it off the registry"
    return Finding("platform_unreachable", seen.reason, f"see to the platform and look again; {forget}")


def _told(symptom: Symptom) -> Rule:
    """The rule for what somebody has said in so many words."""

    def rule(of: Evidence) -> Iterator[Finding]:
        lines = _words(of)
        if symptom.unless is not None and symptoms.first(symptom.unless, lines):
            return
        if line := symptoms.first(symptom.words, lines):
            yield Finding(symptom.name, f"{symptom.cause}: {line}", symptom.advice)

    return rule


def _small_memory(of: Evidence) -> Iterator[Finding]:
    """Before anybody says so. While a model is loaded, what it has taken already is missing from what can be had."""
    said = any(symptoms.first(words, _words(of)) for words in (symptoms.CUDA_MEMORY, symptoms.HOST_MEMORY))
    size = int((of.status.get("progress") or {}).get("total_bytes") or 0)
    if not said and of.phase in ("initializing", "failed") and of.memory is not None and size * ROOM > of.memory:
        yield Finding(
            "out_of_memory",
            f"the model's files have {_size(size)} and it may use {_size(of.memory)} of memory",
            f"give it at least {_size(int(size * ROOM))}, or use a smaller model",
        )


def _too_few_resources(of: Evidence) -> Iterator[Finding]:
    reason = of.seen.reason if of.seen and of.seen.state == "pending" else ""
    if line := symptoms.first(symptoms.NO_ROOM, (reason,)):
        yield Finding(
            "no_room",
            f"the platform has no room for it: {line}",
            "free what others hold, ask for fewer CPUs, GPUs or less memory, or add a node",
        )
    if of.cpus is not None and of.cpus < LEAST_CPUS and of.phase in STARTING:
        yield Finding(
            "too_few_cpus",
            f"it may use {of.cpus:g} CPUs, and loading a model takes more than {LEAST_CPUS:g}",
            "give it at least one CPU",
        )


def _crashed(of: Evidence) -> Iterator[Finding]:
    """What answers 202 for ever: the platform waits for a process that has ended, or that never answers."""
    ended = of.seen is not None and of.seen.state in {"failed", "gone", "stopped"}
    looping = of.seen is not None and "CrashLoopBackOff" in f"{of.seen.pod_status} {of.seen.reason}"
    if of.seen is not None and (ended or looping) and of.phase != "stopping":
        reason = of.seen.reason or f"its state is {of.seen.pod_status or of.seen.state}"
        yield Finding("crashed", f"it ended after its start: {reason}", f"{_logs(of)}; then stop it and start it again")
    elif of.phase == "initializing" and of.silent_s > SILENT_S:
        yield Finding(
            "silent",
            f"it runs and has not answered for {of.silent_s:.0f} s",
            f"{_logs(of)}; it may hang: stop it and start it again",
        )


def _slow_download(of: Evidence) -> Iterator[Finding]:
    progress = of.status.get("progress") or {}
    done, total = int(progress.get("done_bytes") or 0), int(progress.get("total_bytes") or 0)
    if of.phase not in STARTING or of.phase_s < SLOW_DOWNLOAD_S or not progress or 0 <= total <= done:
        return
    rate = done / of.phase_s
    left = f", about {(total - done) / rate:.0f} s to go" if rate and total > 0 else ""
    of_total = f" of {_size(total)}" if total > 0 else ""
    yield Finding(
        "slow_download",
        f"its model is on its way: {_size(done)}{of_total} in {of.phase_s:.0f} s{left}",
        "wait, or check the bandwidth to the storage; a store in the same region, or a copy on a volume, is quicker",
    )


def _long_load(of: Evidence) -> Iterator[Finding]:
    if of.phase == "loading" and of.phase_s > LONG_LOAD_S and not any(_slow_download(of)):
        yield Finding(
            "long_load",
            f"its model has been loading for {of.phase_s:.0f} s",
            f"very large models take minutes: wait longer; {_logs(of)} whether it goes on",
        )


def _cannot_stop(of: Evidence) -> Iterator[Finding]:
    if of.phase_s < STUCK_STOP_S and not of.errors:
        return
    pending = f": {', '.join(of.operations)} still goes on" if of.operations else ""
    why = f"; {of.errors[0]}" if of.errors else ""
    held = f"kubectl get statefulsets,pods shows what holds {of.seen.pod_name}" if of.seen and of.seen.pod_name else ""
    first = "wait for what goes on and stop it once more" if pending else "stop it once more"
    advice = "; ".join(filter(None, (first, held)))
    yield Finding(
        "cannot_stop",
        f"it has been stopping for {of.phase_s:.0f} s{pending}{why}",
        f"{advice}; on Kubernetes `kubectl delete statefulset` of its name takes it away by hand",
    )


def _wrong_parameters(of: Evidence) -> Iterator[Finding]:
    """A store that refuses media is told as such, by its own rule."""
    said = "" if _denied(of) else of.rejected or symptoms.first(symptoms.PARAMETERS, of.errors)
    if said:
        yield Finding(
            "wrong_parameters",
            f"the last request was refused: {said}" if of.rejected else f"the request does not fit the model: {said}",
            "compare it with what the model takes: parameters of its kind, the size and type of its inputs",
        )


RULES: Final[tuple[Rule, ...]] = (
    *map(_told, symptoms.OF_MEMORY),
    _small_memory,
    _too_few_resources,
    *map(_told, symptoms.OF_STORAGE),
    _wrong_parameters,
    _crashed,
    _slow_download,
    _long_load,
)


def _words(of: Evidence) -> tuple[str, ...]:
    """Everything that was said, the plainest first: errors, the platform's reason, the end of the log.

    A model that is ready has overcome what its log may tell.
    """
    seen = (of.seen.reason, *reversed(of.seen.tail)) if of.seen and of.phase != "ready" else ()
    told = str(of.status.get("reason") or "")
    return tuple(said for line in (*of.errors, _denied(of), told, *seen) if (said := symptoms.message(line)))


def _denied(of: Evidence) -> str:
    """Of the last request, where a store refused what it named."""
    return symptoms.first(symptoms.DENIED, (of.rejected,))


def _logs(of: Evidence) -> str:
    return f"platformctl microservice logs {of.job_id} shows why"


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
