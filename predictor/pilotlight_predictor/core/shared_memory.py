"""System shared memory extension: clients on this machine share tensors with the server without copies.

An operator registers a region, a part of an object in /dev/shm, under a name; requests then have region, offset and
size in place of data. A region is mapped once; views keep the mapping alive after it is unregistered.
"""

import mmap
import os
import stat
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from pilotlight_predictor.core.request_parameters import OFF
from pilotlight_predictor.core.requests import InferRequest, InferResponse, SharedMemorySlice
from pilotlight_predictor.core.tensors import Tensor, encode_raw
from pilotlight_predictor.errors import BadRequest, NotFound, Unsupported

FOLDER: Final = Path("/dev/shm")  # noqa: S108  where shm_open creates objects
MAX_NAME: Final = 255


class Region(NamedTuple):
    name: str
    key: str
    offset: int
    byte_size: int
    memory: mmap.mmap

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "key": self.key, "offset": self.offset, "byte_size": self.byte_size}


class SharedMemory:
    """The registered regions, by name."""

    def __init__(self, enabled: bool, folder: Path = FOLDER) -> None:
        self._enabled = enabled
        self._folder = folder
        self._regions: dict[str, Region] = {}

    def register(self, name: str, key: str, offset: int, byte_size: Any) -> None:
        self._check_enabled()
        if not name or len(name) > MAX_NAME:
            raise BadRequest(f"name has {len(name)} characters, must have 1 to {MAX_NAME}")
        if name in self._regions:
            raise BadRequest(f"shared memory region '{name}' already in manager: unregister it first")
        for field, value, least in (("offset", offset, 0), ("byte_size", byte_size, 1)):
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 1 << 62:
                raise BadRequest(f"{field} = {value!r}, must be an integer of {least} or more")
        file = key.removeprefix("/")  # as of shm_open; it cannot leave /dev/shm
        if not file or len(file.encode()) > MAX_NAME or "/" in file or "\0" in file or file in {".", ".."}:
            raise BadRequest(f"key = {key[:100]!r}, must be the name of a shared memory object, such as /my_tensors")
        memory = _mapped(self._folder / file, key, offset + byte_size)
        self._regions[name] = Region(name, key, offset, byte_size, memory)

    def unregister(self, name: str = "") -> None:
        """Unregister one region, or all. An unknown name is not an error, as in Triton."""
        self._check_enabled()
        if name:
            self._regions.pop(name, None)
        else:
            self._regions.clear()

    def status(self, name: str = "") -> list[dict[str, Any]]:
        self._check_enabled()
        if name and name not in self._regions:
            raise NotFound(f"Unable to find system shared memory region: '{name}'")
        return [region.describe() for region in self._regions.values() if name in ("", region.name)]

    def find(self, slice_: SharedMemorySlice) -> memoryview:
        """Return the writable bytes of a slice. Raises BadRequest or NotFound."""
        if not self._enabled:
            raise BadRequest(OFF)
        region = self._regions.get(slice_.region)
        if region is None:
            raise NotFound(f"Unable to find shared memory region: '{slice_.region[:100]}'")
        if slice_.offset + slice_.byte_size > region.byte_size:
            raise BadRequest(
                f"Invalid offset + byte size for shared memory region: '{region.name}' has {region.byte_size} bytes,"
                f" requested are {slice_.byte_size} at offset {slice_.offset}"
            )
        if region.memory.size() < region.offset + region.byte_size:  # reading beyond the end is a SIGBUS
            raise BadRequest(f"shared memory region '{region.name}' shrank after it was registered")
        start = region.offset + slice_.offset
        return memoryview(region.memory)[start : start + slice_.byte_size]

    def _check_enabled(self) -> None:
        if not self._enabled:
            raise Unsupported(OFF)


def _mapped(path: Path, key: str, length: int) -> mmap.mmap:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise BadRequest(f"Unable to open shared memory region: key = {key[:100]!r}: {reason}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise BadRequest(f"key = {key[:100]!r}, must be a shared memory object")
        if status.st_size < length:
            raise BadRequest(
                f"failed to register shared memory region: {key[:100]!r} has {status.st_size} bytes,"
                f" offset and byte_size reach to {length}"
            )
        return mmap.mmap(descriptor, length)
    finally:
        os.close(descriptor)


def is_shared(tensor: Tensor) -> bool:
    """Whether a tensor lies in a region, where the client may change it at any time."""
    base: Any = tensor.array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, memoryview) and isinstance(base.obj, mmap.mmap)


def place_outputs(request: InferRequest, response: InferResponse) -> None:
    """Write outputs to their shared-memory slices. Raises BadRequest if one is too large for its slice."""
    for output in request.outputs:
        if output.shared_memory is None or output.target is None or output.name not in response.outputs:
            continue
        data = encode_raw(response.outputs[output.name])
        if len(data) > len(output.target):
            raise BadRequest(
                f"shared memory size specified with the request for output '{output.name}' ({len(output.target)} bytes)"
                f" should be at least {len(data)} bytes to hold the results"
            )
        output.target[: len(data)] = data
        written = output.shared_memory._replace(byte_size=len(data))
        response.shared_outputs = {**response.shared_outputs, output.name: written}
