"""Shared-memory parameters of a tensor: region, offset, byte size. Pure."""

from collections.abc import Callable
from typing import Any, Final

from pilotlight_predictor.errors import BadRequest
from pilotlight_predictor.inference import Parameters, SharedMemorySlice

OFF: Final = "shared memory is not enabled on this server (--allow-shared-memory)"
REGION: Final = "shared_memory_region"
FindRegion = Callable[[SharedMemorySlice], memoryview]


def no_shared_memory(_: SharedMemorySlice) -> memoryview:
    raise BadRequest(OFF)


def read_region(where: str, parameters: Parameters) -> SharedMemorySlice:
    region = parameters.get(REGION)
    if not isinstance(region, str) or not region:
        raise BadRequest(f"{where}.parameters.{REGION} = {region!r}, must be the name of a region")
    offset = _size(where, parameters, "shared_memory_offset", 0)
    return SharedMemorySlice(region, offset, _size(where, parameters, "shared_memory_byte_size", None))


def region_parameters(shared: SharedMemorySlice) -> dict[str, Any]:
    """Return the parameters of an output in shared memory."""
    parameters = {REGION: shared.region, "shared_memory_byte_size": shared.byte_size}
    return {**parameters, "shared_memory_offset": shared.offset} if shared.offset else parameters


def _size(where: str, parameters: Parameters, key: str, default: int | None) -> int:
    value = parameters.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 62:
        raise BadRequest(f"{where}.parameters.{key} = {value!r}, must be a number of bytes")
    return value
