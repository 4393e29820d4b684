"""Responses of the TRTIS protocol: raw outputs and InferResponseHeader, ServerStatus and RequestStatus. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.core.protobuf_codec import encode
from pilotlight_predictor.core.requests import InferResponse
from pilotlight_predictor.core.tensors import Tensor, encode_raw
from pilotlight_predictor.errors import BadRequest, PredictorError
from pilotlight_predictor.metrics.model_stats import ModelStats
from pilotlight_predictor.models.model_version import ranked
from pilotlight_predictor.protocols.trtis.request import Header
from pilotlight_predictor.protocols.trtis.text_protobuf import (
    MODEL_STATES,
    REQUEST_CODES,
    RESPONSE_HEADER,
    RESPONSE_HEADER_1_0,
    write_text,
)
from pilotlight_predictor.repository.model_config import ModelConfig
from pilotlight_predictor.server.server_state import ServerState

Labels = Mapping[str, Sequence[str]]
MAX_MESSAGE: Final = 1000  # characters: many clients reject headers of 8 KiB
SERVER_STATES: Final = {
    ServerState.INITIALIZING: "SERVER_INITIALIZING",
    ServerState.LOADING: "SERVER_INITIALIZING",
    ServerState.READY: "SERVER_READY",
    ServerState.FAILED: "SERVER_FAILED_TO_INITIALIZE",
    ServerState.STOPPING: "SERVER_EXITING",
}
_OTHER_CODES: Final = {"DEADLINE": "UNAVAILABLE", "CANCELLED": "UNAVAILABLE"}
_OTHER_STATES: Final = {"PARKED": "MODEL_READY"}  # it accepts requests
ALL_SIZES: Final = 0  # key of statistics that are not recorded by batch size


def encode_infer(
    header: Header, response: InferResponse, labels: Labels, *, batched: bool, binary: bool
) -> tuple[list[Buffer], str | None]:
    """Return body and, for 0.11 and later, the NV-InferResponse header, without the classes, which may be many."""
    blobs, values = describe(header, response, labels, batched=batched)
    table = RESPONSE_HEADER if header.old else RESPONSE_HEADER_1_0
    last = encode(table, values) if binary else write_text(values, table).encode()
    if header.old:
        return [*blobs, last], None
    outputs = [{"name": output["name"], "raw": output.get("raw")} for output in values["output"]]
    return [*blobs, last], write_text({**values, "output": outputs}, table, one_line=True)


def describe(
    header: Header, response: InferResponse, labels: Labels, *, batched: bool
) -> tuple[list[Buffer], dict[str, Any]]:
    """Return the raw outputs, and the values of the InferResponseHeader."""
    classes = {output.name: output.classes for output in header.outputs}
    blobs: list[Buffer] = []
    outputs: list[dict[str, Any]] = []
    for name, tensor in response.outputs.items():
        if count := classes.get(name, 0):
            outputs.append(
                {"name": name, "batch_classes": _classes(name, tensor, count, labels.get(name, ()), batched)}
            )
            continue
        blob = encode_raw(tensor)
        blobs.append(blob)
        if not header.old:  # the shape of one and the size of all rows; before 0.11 the size of one
            shape = tensor.array.shape[1:] if batched else tensor.array.shape
            raw: dict[str, Any] = {"dims": shape, "batch_byte_size": len(blob)}
        elif tensor.datatype != "BYTES":
            raw = {"byte_size": len(blob) // (len(tensor.array) or 1) if batched else len(blob)}
        else:
            raise BadRequest(
                f"output '{name}' is of strings, which have no byte_size: leave byte_size out, as 0.11 does"
            )
        outputs.append({"name": name, "raw": raw})
    values = {
        "model_name": response.model,
        "model_version": response.version,
        "batch_size": max(header.batch_size, 1),
        "output": outputs,
        "id": header.id,
    }
    return blobs, values


def _classes(
    name: str, tensor: Tensor, count: int, labels: Sequence[str], batched: bool
) -> list[dict[str, list[dict[str, Any]]]]:  # fmt: skip
    rows, top = ranked(name, tensor, count, batched)
    with np.errstate(over="ignore"):
        rows = rows.astype(np.float32)  # the type of the message
    names = dict(enumerate(labels))
    return [  # values are numpy scalars, which print no more digits than they have
        {"cls": [{"idx": int(i), "value": row[i], "label": names.get(int(i), "")} for i in best]}
        for row, best in zip(rows, top, strict=True)
    ]


def error_status(error: PredictorError) -> dict[str, Any]:
    """Return the values of a RequestStatus; codes that TRTIS does not have are UNKNOWN."""
    code = _OTHER_CODES.get(error.code, error.code)
    return {"code": code if code in REQUEST_CODES else "UNKNOWN", "msg": str(error)[:MAX_MESSAGE]}


def model_status(
    name: str, config: ModelConfig | None, rows: Iterable[Mapping[str, str]], stats: Mapping[int, ModelStats]
) -> dict[str, Any]:
    """Return the values of a ModelStatus from rows of the repository index and statistics by served version."""
    versions = {int(row["version"]): row["state"] for row in rows if "version" in row}
    known: dict[str, Any] = {"name": name}
    if config is not None:
        platform = config.platform or config.backend
        known = {**config.raw, "name": config.name, "platform": platform, "tags": config.raw.get("metric_tags")}
    return {
        "config": known,
        "version_status": {version: _version(state, stats.get(version)) for version, state in versions.items()},
    }


def _version(state: str, stats: ModelStats | None) -> dict[str, Any]:
    name = _OTHER_STATES.get(state, f"MODEL_{state}")
    values: dict[str, Any] = {"ready_state": name if name in MODEL_STATES else "MODEL_UNKNOWN"}
    if stats is not None:
        values["infer_stats"] = _infer_stats(stats)
        values["model_execution_count"] = stats.execution_count
        values["model_inference_count"] = stats.inference_count
    return values


def _infer_stats(stats: ModelStats) -> dict[int, dict[str, Any]]:
    """Return compute times by batch size, and request times, which batches share, under ALL_SIZES.

    A client that sums over the sizes thus gets each figure once.
    """
    if not stats.success_count and not stats.failure_count:
        return {}
    totals = {
        "success": _duration(stats.success_count, stats.success_ns),
        "failed": _duration(stats.failure_count, stats.failure_ns),
        "queue": _duration(stats.success_count, stats.queue_ns),
    }
    sizes = {size: {"compute": _duration(batch[0], sum(batch[1:4]))} for size, batch in sorted(stats.batches.items())}
    return {ALL_SIZES: totals, **sizes}


def _duration(count: int, ns: int) -> dict[str, int]:
    return {"count": count, "total_time_ns": ns}
