"""Diagnosis of a microservice: a table of rules over evidence, each with a likely cause and advice. Pure.

`Evidence` combines platform, server and log; `diagnose` applies the rules. Used by `platformctl microservice status`,
by `doctor`, and by the API for status and 503 responses.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

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


def _any(*expressions: str) -> re.Pattern[str]:
    return re.compile("|".join(expressions), re.IGNORECASE)


CUDA_MEMORY: Final = _any(
    r"CUDA(?: error:)? out of memory", r"CUDA_ERROR_OUT_OF_MEMORY", r"cudaErrorMemoryAllocation", r"CUDA failure 2\b",
    r"torch\.(?:cuda\.)?OutOfMemoryError", r"CUBLAS_STATUS_ALLOC_FAILED", r"CUDNN_STATUS_ALLOC_FAILED",
    r"Failed to allocate memory for requested buffer",
)  # fmt: skip
HOST_MEMORY: Final = _any(
    r"OOMKilled", r"OUT_OF_MEMORY", r"\bMemoryError\b", r"std::bad_alloc", r"Cannot allocate memory",
    r"ran out of memory", r"memory limit .* reached", r"ended by the kernel: out of memory",
    r"used \d+ MiB, limit \d+ MiB", r"used more memory than it may", r"DefaultCPUAllocator: can't allocate",
    r"\boom[-_]kill",
)  # fmt: skip
NO_CAPACITY: Final = _any(
    r"Insufficient (?:cpu|memory|nvidia\.com/gpu|ephemeral-storage)", r"no node can take it", r"Unschedulable",
    r"\(?(?:Resources|Priority|QOSMax\w+|AssocMax\w+|ReqNodeNotAvail\w*)\)?$", r"didn't match .*node", r"no capacity",
    r"could not select device driver",
)  # fmt: skip
DENIED: Final = _any(
    r"access was refused", r"no credentials were found", r"AccessDenied", r"InvalidAccessKeyId",
    r"SignatureDoesNotMatch", r"AuthenticationFailed", r"AuthorizationFailure", r"ExpiredToken",
    r"credentials(?:\.\w+)?(?: are wrong|: env:\S+ is not set|: file:\S+ is not set)", r"\b403 Forbidden",
    r"\b401 Unauthorized", r"is refused by the store", r"gated repo", r"storage account is unknown",
)  # fmt: skip
UNREACHABLE: Final = _any(
    r"no connection \(", r"cannot be resolved", r"Name or service not known", r"Temporary failure in name resolution",
    r"dns error", r"network timeout", r"error sending request", r"error trying to connect", r"operation timed out",
    r"Network is unreachable", r"tcp connect error", r"the connection broke",
)  # fmt: skip
MISSING: Final = _any(
    r"no such file", r"does not exist", r"nothing is stored there", r"\bis not there\b", r"FileNotFoundError",
    r"no file is below", r"file not found", r"no model was found", r"has no (?:model|weights)",
    r"the bucket is not there", r"no version directory",
)  # fmt: skip
BAD_FORMAT: Final = _any(
    r"INVALID_PROTOBUF", r"Protobuf parsing failed", r"SafetensorError", r"HeaderTooLarge", r"InvalidHeader",
    r"PytorchStreamReader failed", r"UnpicklingError", r"not a valid (?:zip|onnx|model)", r"invalid model format",
    r"is damaged", r"is no (?:ONNX|TorchScript|safetensors)", r"INVALID_GRAPH", r"no model format", r"truncated",
    r"holds more than tensors", r"sha256 .* must be", r"MetadataIncompleteBuffer", r"Unsupported model IR version",
)  # fmt: skip
PARAMETERS: Final = _any(
    r"\bmust be\b", r"is not known", r"unexpected (?:inference )?input", r"expected .* inputs?\b", r"unexpected shape",
    r"unexpected datatype", r"incompatible", r"invalid_request_error",
)  # fmt: skip


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


class Symptom(NamedTuple):
    """A pattern with cause and advice. It does not apply where `unless`, a more specific one, matches."""

    name: str
    pattern: re.Pattern[str]
    cause: str
    advice: str
    unless: re.Pattern[str] | None = None


Rule = Callable[[Evidence], Iterator[Advice]]
MEMORY_SYMPTOMS: Final = (
    Symptom(
        "cuda_out_of_memory", CUDA_MEMORY, "the GPU has too little memory for the model",
        "stop it and start it on a GPU with more memory or with more GPUs (num_gpus), or use a smaller or quantized"
        " model; nvidia-smi shows who else holds memory",
    ),
    Symptom(
        "out_of_memory", HOST_MEMORY, "it ran out of memory", "start it again with a higher memory limit", CUDA_MEMORY
    ),
)  # fmt: skip
STORAGE_SYMPTOMS: Final = (
    Symptom(
        "storage_denied", DENIED, "the storage refuses the workspace's credentials",
        "check which variables or secret the workspace refers to, that they are set where it runs, and that they may"
        " read the bucket; then stop it and start it again",
    ),
    Symptom(
        "storage_unreachable", UNREACHABLE, "the storage cannot be reached",
        "check the workspace's endpoint, the network and its proxies from where it runs, then start it again", DENIED,
    ),
    Symptom(
        "missing_file", MISSING, "a file of the model is not there",
        "check that the training job finished and saved its checkpoint, that its artifact names that place, and that"
        " a container sees the folder (--mounts)",
    ),
    Symptom(
        "bad_format", BAD_FORMAT, "the model's file is damaged or of another format",
        "compare its size and hash with what training wrote, export it again, or train again",
    ),
)  # fmt: skip


def diagnose(evidence: Evidence) -> tuple[Advice, ...]:
    """Return all findings, the most certain first."""
    if evidence.platform is not None and evidence.platform.state == "unknown":  # nothing else is known
        forget = f"where it is gone, platformctl microservice stop {evidence.job_id} --forget takes it off the registry"
        advice = f"see to the platform and look again; {forget}"
        return (Advice("platform_unreachable", evidence.platform.reason, advice),)
    if evidence.phase == "stopping":
        return tuple(_cannot_stop(evidence))
    return tuple(finding for rule in RULES for finding in rule(evidence))


def _symptom_rule(symptom: Symptom) -> Rule:
    """Return the rule that matches a symptom's pattern in errors and logs."""

    def rule(evidence: Evidence) -> Iterator[Advice]:
        lines = _messages(evidence)
        if symptom.unless is not None and first_match(symptom.unless, lines):
            return
        if line := first_match(symptom.pattern, lines):
            yield Advice(symptom.name, f"{symptom.cause}: {line}", symptom.advice)

    return rule


def _small_memory(evidence: Evidence) -> Iterator[Advice]:
    """Compare the model's size with the memory, before an error occurs.

    Not while it loads: the memory that it already uses is missing from what is available.
    """
    reported = any(first_match(pattern, _messages(evidence)) for pattern in (CUDA_MEMORY, HOST_MEMORY))
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
    if line := first_match(NO_CAPACITY, (reason,)):
        advice = "free what others hold, ask for fewer CPUs, GPUs or less memory, or add a node"
        yield Advice("no_room", f"the platform has no room for it: {line}", advice)
    if evidence.cpus is not None and evidence.cpus < LEAST_CPUS and evidence.phase in STARTING:
        cause = f"it may use {evidence.cpus:g} CPUs, and loading a model takes more than {LEAST_CPUS:g}"
        yield Advice("too_few_cpus", cause, "give it at least one CPU")


def _crashed(evidence: Evidence) -> Iterator[Advice]:
    """Detect a process that has ended or does not respond, for which the API would return 202 forever."""
    platform = evidence.platform or PlatformStatus("running")
    looping = "CrashLoopBackOff" in f"{platform.pod_status} {platform.reason}"
    if looping or platform.state in {"failed", "gone", "stopped"}:
        reason = platform.reason or f"its state is {platform.pod_status}"
        advice = f"{_logs(evidence)}; then stop it and start it again"
        yield Advice("crashed", f"it ended after its start: {reason}", advice)
    elif evidence.phase == "initializing" and evidence.silent_s > SILENT_S:
        cause = f"it runs and has not answered for {evidence.silent_s:.0f} s"
        yield Advice("silent", cause, f"{_logs(evidence)}; it may hang: stop it and start it again")


def _slow_download(evidence: Evidence) -> Iterator[Advice]:
    progress = evidence.status.get("progress") or {}
    done, total = int(progress.get("done_bytes") or 0), int(progress.get("total_bytes") or 0)
    if evidence.phase not in STARTING or evidence.phase_s < SLOW_DOWNLOAD_S or not progress or 0 <= total <= done:
        return
    rate = done / evidence.phase_s
    left = f", about {(total - done) / rate:.0f} s to go" if rate and total > 0 else ""
    of_total = f" of {_size(total)}" if total > 0 else ""
    yield Advice(
        "slow_download",
        f"its model is on its way: {_size(done)}{of_total} in {evidence.phase_s:.0f} s{left}",
        "wait, or check the bandwidth to the storage; a store in the same region, or a copy on a volume, is quicker",
    )


def _long_load(evidence: Evidence) -> Iterator[Advice]:
    if evidence.phase == "loading" and evidence.phase_s > LONG_LOAD_S and not any(_slow_download(evidence)):
        advice = f"very large models take minutes: wait longer; {_logs(evidence)} whether it goes on"
        yield Advice("long_load", f"its model has been loading for {evidence.phase_s:.0f} s", advice)


def _cannot_stop(evidence: Evidence) -> Iterator[Advice]:
    if evidence.phase_s < STUCK_STOP_S and not evidence.errors:
        return
    pending = f": {', '.join(evidence.operations)} still goes on" if evidence.operations else ""
    why = f"; {evidence.errors[0]}" if evidence.errors else ""
    advice = "wait for what goes on and stop it once more" if pending else "stop it once more"
    if evidence.platform and evidence.platform.pod_name:
        advice += f"; kubectl get statefulsets,pods shows what holds {evidence.platform.pod_name}"
    by_hand = f"`kubectl delete statefulset -l pilotlight.dev/microservice={evidence.job_id}`"
    yield Advice(
        "cannot_stop",
        f"it has been stopping for {evidence.phase_s:.0f} s{pending}{why}",
        f"{advice}; on Kubernetes {by_hand} takes it away by hand",
    )


def _wrong_request(evidence: Evidence) -> Iterator[Advice]:
    """Report a rejected request, unless a store refused its media: that has its own rule."""
    reason = "" if _denied(evidence) else evidence.rejected or first_match(PARAMETERS, evidence.errors)
    if reason and evidence.rejected_media:
        advice = "check that it is there and an image or a video, and what PILOTLIGHT_MEDIA_* opens (docs/media.md)"
        yield Advice("wrong_media", f"a medium of the request was refused: {reason}", advice)
    elif reason:
        problem = "the last request was refused" if evidence.rejected else "the request does not fit the model"
        advice = "compare it with what the model takes: parameters of its kind, the size and type of its inputs"
        yield Advice("wrong_parameters", f"{problem}: {reason}", advice)


RULES: Final[tuple[Rule, ...]] = (
    *map(_symptom_rule, MEMORY_SYMPTOMS),
    _small_memory,
    _too_few_resources,
    *map(_symptom_rule, STORAGE_SYMPTOMS),
    _wrong_request,
    _crashed,
    _slow_download,
    _long_load,
)


def first_match(pattern: re.Pattern[str], lines: Iterable[str]) -> str:
    """Return the first matching line, shortened; empty where none matches."""
    return next((line[:MAX_LINE] for line in lines if pattern.search(line)), "")


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
    return first_match(DENIED, (evidence.rejected,))


def _logs(evidence: Evidence) -> str:
    if evidence.over_http:
        return f"GET …/jobs/{evidence.job_id}/inference_microservice/logs shows why"
    return f"platformctl microservice logs {evidence.job_id} shows why"


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
