"""V2 parameters of a request (sequence_id, sequence_start, sequence_end) and of a tensor in shared memory. Pure."""

from collections.abc import Callable
from typing import Any, Final

from pilotlight_predictor.core.requests import Parameters, SequencePoint, SharedMemorySlice
from pilotlight_predictor.errors import BadRequest

KEY: Final = "sequence_id"
MAX_ID: Final = 128  # of a string, as in Triton
OFF: Final = "shared memory is not enabled on this server (--allow-shared-memory)"
REGION: Final = "shared_memory_region"
FindRegion = Callable[[SharedMemorySlice], memoryview]


def sequence_point(parameters: Parameters) -> SequencePoint | None:
    """Return the request's position in its sequence; None without an id, or with 0 or ""."""
    identity = parameters.get(KEY, 0)
    if isinstance(identity, bool) or not isinstance(identity, int | str):
        raise BadRequest(f"parameters.{KEY} = {identity!r}, must be a number or a string")
    if isinstance(identity, int) and not 0 <= identity < 1 << 64:
        raise BadRequest(f"parameters.{KEY} = {identity}, must be from 0 to {(1 << 64) - 1}")
    if isinstance(identity, str) and len(identity) > MAX_ID:
        raise BadRequest(f"parameters.{KEY} has {len(identity)} characters, must be at most {MAX_ID}")
    start, end = parameters.get("sequence_start", False), parameters.get("sequence_end", False)
    for key, flag in (("sequence_start", start), ("sequence_end", end)):
        if not isinstance(flag, bool):
            raise BadRequest(f"parameters.{key} = {flag!r}, must be true or false")
    return SequencePoint(identity, start, end) if identity else None


def no_shared_memory(_: SharedMemorySlice) -> memoryview:
    raise BadRequest(OFF)


def in_huge_request(_: SharedMemorySlice) -> memoryview:
    raise BadRequest("a request with more than 2 MiB of JSON cannot use shared memory tensors; send two requests")


def read_region(where: str, parameters: Parameters) -> SharedMemorySlice:
    region = parameters.get(REGION)
    if not isinstance(region, str) or not region:
        raise BadRequest(f"{where}.parameters.{REGION} = {region!r}, must be the name of a region")
    offset = _size(where, parameters, "shared_memory_offset", 0)
    return SharedMemorySlice(region, offset, _size(where, parameters, "shared_memory_byte_size", None))


def region_parameters(shared: SharedMemorySlice) -> dict[str, Any]:
    """Return the parameters of an output in shared memory; none of a region without a name."""
    if not shared.region:
        return {}
    parameters = {REGION: shared.region, "shared_memory_byte_size": shared.byte_size}
    return {**parameters, "shared_memory_offset": shared.offset} if shared.offset else parameters


def _size(where: str, parameters: Parameters, key: str, default: int | None) -> int:
    value = parameters.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 62:
        raise BadRequest(f"{where}.parameters.{key} = {value!r}, must be a number of bytes")
    return value
