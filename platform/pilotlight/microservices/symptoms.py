"""Error messages of libraries, platforms and the predictor, as patterns with cause and advice. Pure.

diagnosis.py makes a rule of each symptom; rules that need more than text are there.
"""

import json
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

MAX_LINE: Final = 300


def _any(*expressions: str) -> re.Pattern[str]:
    return re.compile("|".join(expressions), re.IGNORECASE)


CUDA_MEMORY: Final = _any(
    r"CUDA(?: error:)? out of memory", r"CUDA_ERROR_OUT_OF_MEMORY", r"cudaErrorMemoryAllocation", r"CUDA failure 2\b",
    r"torch\.(?:cuda\.)?OutOfMemoryError", r"CUBLAS_STATUS_ALLOC_FAILED", r"CUDNN_STATUS_ALLOC_FAILED",
    r"Failed to allocate memory for requested buffer",
)  # fmt: skip
HOST_MEMORY: Final = _any(
    r"OOMKilled", r"OUT_OF_MEMORY", r"\bMemoryError\b", r"std::bad_alloc", r"Cannot allocate memory",
    r"ran out of memory", r"memory limit .* reached", r"ended by the kernel: out of memory", r"exit code 137\b",
    r"used \d+ MiB, limit \d+ MiB", r"DefaultCPUAllocator: can't allocate", r"signal 9\b", r"\boom[-_]kill",
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


class Symptom(NamedTuple):
    """A pattern with cause and advice. It does not apply where `unless`, a more specific one, matches."""

    name: str
    words: re.Pattern[str]
    cause: str
    advice: str
    unless: re.Pattern[str] | None = None


OF_MEMORY: Final = (
    Symptom(
        "cuda_out_of_memory",
        CUDA_MEMORY,
        "the GPU has too little memory for the model",
        "stop it and start it on a GPU with more memory or with more GPUs (num_gpus), or use a smaller or quantized"
        " model; nvidia-smi shows who else holds memory",
    ),
    Symptom(
        "out_of_memory",
        HOST_MEMORY,
        "it ran out of memory",
        "start it again with a higher memory limit",
        unless=CUDA_MEMORY,
    ),
)
OF_STORAGE: Final = (
    Symptom(
        "storage_denied",
        DENIED,
        "the storage refuses the workspace's credentials",
        "check which variables or secret the workspace refers to, that they are set where it runs, and that they may"
        " read the bucket; then stop it and start it again",
    ),
    Symptom(
        "storage_unreachable",
        UNREACHABLE,
        "the storage cannot be reached",
        "check the workspace's endpoint, the network and its proxies from where it runs, then start it again",
        unless=DENIED,
    ),
    Symptom(
        "missing_file",
        MISSING,
        "a file of the model is not there",
        "check that the training job finished and saved its checkpoint, and that its artifact names that place",
    ),
    Symptom(
        "bad_format",
        BAD_FORMAT,
        "the model's file is damaged or of another format",
        "compare its size and hash with what training wrote, export it again, or train again",
    ),
)


def first_match(pattern: re.Pattern[str], lines: Iterable[str]) -> str:
    """Return the first matching line, shortened; empty where none matches."""
    return next((line[:MAX_LINE] for line in lines if pattern.search(line)), "")


def message(line: str) -> str:
    """Return the message of a log line: of the JSON log schema, empty below WARNING, else the line."""
    if line.startswith("{"):
        try:
            document = json.loads(line)
        except ValueError:
            return line.strip()
        if isinstance(document, dict) and "message" in document:
            if document.get("level") in ("DEBUG", "INFO"):
                return ""
            return " ".join(str(document[name]) for name in ("message", "exception") if document.get(name))
    return line.strip()
