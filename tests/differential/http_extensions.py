"""HTTP cases of Triton's further extensions: generate, and the settings of shared memory, traces and the log."""

from collections.abc import Iterator
from typing import Any, Final

from tests.differential.case import HttpCase

GENERATED: Final[dict[str, Any]] = {
    "list": {"x": [1, 2]}, "short": {"x": [1]}, "long": {"x": [1, 2, 3]}, "scalar": {"x": 1}, "text": {"x": "a"},
    "nested": {"x": [[1, 2]]}, "empty": {}, "no-json": b"{", "array": [1], "null": {"x": None}, "real": {"x": [1.5, 2]},
    "id": {"id": "abc", "x": [1, 2]}, "parameters": {"x": [1, 2], "parameters": {"p": 1}},
    "unknown": {"x": [1, 2], "p": 1},
}  # fmt: skip
DATATYPES: Final[dict[str, Any]] = {
    "bool": True, "uint8": 7, "uint64": 2**63, "int8": -7, "int64": -(2**62), "fp32": 0.5, "fp64": 1e300,
    "bytes": "grün", "fp16": 0.5,
}  # fmt: skip
STATUSES: Final = {
    "system-memory": "/v2/systemsharedmemory/status", "system-region": "/v2/systemsharedmemory/region/r/status",
    "gpu-memory": "/v2/cudasharedmemory/status", "trace": "/v2/trace/setting",
    "trace/model": "/v2/models/add/trace/setting",
    "trace/no-model": "/v2/models/unknown/trace/setting", "logging": "/v2/logging",
}  # fmt: skip
LOGGING: Final[dict[str, Any]] = {
    "nothing": {}, "verbose": {"log_verbose_level": 0}, "info": {"log_info": False}, "text": {"log_info": "x"},
    "unknown": {"nix": 1}, "no-json": b"{", "format": {"log_format": "default"}, "format-unknown": {"log_format": "x"},
}  # fmt: skip
TRACE: Final[dict[str, Any]] = {
    "nothing": {}, "off": {"trace_level": ["OFF"]}, "rate": {"trace_rate": "100"}, "rate-text": {"trace_rate": "x"},
    "level-unknown": {"trace_level": ["NIX"]}, "unknown": {"nix": "1"}, "no-json": b"{",
}  # fmt: skip


def extensions() -> Iterator[HttpCase]:
    for verb in ("generate", "generate_stream"):
        path = f"/v2/models/versions/{verb}"
        for name, body in GENERATED.items():
            yield HttpCase(f"{verb}/{name}", "POST", path, body)
        yield HttpCase(f"{verb}/get", "GET", path)
        yield HttpCase(f"{verb}/version", "POST", f"/v2/models/versions/versions/1/{verb}", {"x": [1, 2]})
        yield HttpCase(f"{verb}/no-version", "POST", f"/v2/models/versions/versions/9/{verb}", {"x": [1, 2]})
        yield HttpCase(f"{verb}/no-model", "POST", f"/v2/models/unknown/{verb}", {"x": [1, 2]})
        yield HttpCase(f"{verb}/fails", "POST", f"/v2/models/fails/{verb}", {"x": [1, 2]})
    for datatype, value in DATATYPES.items():
        yield HttpCase(f"generate/{datatype}", "POST", "/v2/models/types/generate", {datatype: value})
    for name, path in STATUSES.items():
        yield HttpCase(f"settings/{name}", "GET", path)
    for name, body in LOGGING.items():
        yield HttpCase(f"settings/logging/{name}", "POST", "/v2/logging", body)
    for name, body in TRACE.items():
        yield HttpCase(f"settings/trace/{name}", "POST", "/v2/trace/setting", body)
