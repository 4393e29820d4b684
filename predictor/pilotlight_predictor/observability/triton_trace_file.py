"""Trace file in Triton's format, for `--compat triton`: one JSON array of events per file, several for each trace.

Unlike Triton's, which is written when it is full or the server ends, it is a whole array after every write.
"""

import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping
from errno import EINVAL
from pathlib import Path
from typing import Any, Final

import orjson

from pilotlight_predictor.core.requests import Outputs

_ACTIVITIES: Final = {"inputs": "TENSOR_QUEUE_INPUT", "outputs": "TENSOR_BACKEND_OUTPUT"}


def encode_events(
    head: Mapping[str, Any], times: Iterable[tuple[str, int]], tensors: Mapping[str, Outputs], error: str, most: int
) -> bytes:
    """Return the events of a trace without the brackets of the array; at most `most` values of each tensor."""
    events = [{key: value for key, value in head.items() if value != ""}]
    events += [{"id": head["id"], "timestamps": [{"name": name, "ns": ns}]} for name, ns in times]
    for direction, named in tensors.items():
        events += [
            {"id": head["id"], "activity": _ACTIVITIES[direction], "tensor": each} for each in _tensors(named, most)
        ]
    if error:
        events.append({"id": head["id"], "error": error})
    return orjson.dumps(events)[1:-1]


def _tensors(named: Outputs, most: int) -> Iterator[dict[str, str]]:
    for name, (datatype, array) in named.items():
        data = ",".join(_text(value) for value in array.ravel()[:most].tolist())
        yield {"name": name, "data": data, "shape": ",".join(map(str, array.shape)), "dtype": datatype}


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return f'"{value.decode(errors="replace")}"'
    return f"{value:g}" if isinstance(value, float) else str(int(value))


def append_events(path: Path, events: Iterable[bytes]) -> None:
    """Extend the array in a file that several processes may write; all events or, on a full disk, none.

    Raise OSError, also if the file has something else.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"]":
            raise OSError(EINVAL, "it does not end as a JSON array", str(path))
        try:
            _write(descriptor, (b"" if size else b"[") + b",".join(events) + b"]", size)
            if size:
                os.pwrite(descriptor, b",", size - 1)  # the end of the array so far, kept until the rest is written
        except OSError:
            os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)


def _write(descriptor: int, data: bytes, at: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, at)
        data, at = data[written:], at + written
