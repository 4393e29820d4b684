"""shared_memory_region, shared_memory_offset and shared_memory_byte_size of a tensor's parameters, and back. Pure."""

from collections.abc import Callable
from typing import Any, Final

from pilotlight_predictor.errors import BadRequest
from pilotlight_predictor.inference import Parameters, SharedPlace

OFF: Final = "shared memory is not enabled on this server (--allow-shared-memory)"
REGION: Final = "shared_memory_region"
Find = Callable[[SharedPlace], memoryview]


def not_shared(_: SharedPlace) -> memoryview:
    raise BadRequest(OFF)


def read_place(where: str, parameters: Parameters) -> SharedPlace:
    region = parameters.get(REGION)
    if not isinstance(region, str) or not region:
        raise BadRequest(f"{where}.parameters.{REGION} = {region!r}, must be the name of a region")
    offset = _size(where, parameters, "shared_memory_offset", 0)
    return SharedPlace(region, offset, _size(where, parameters, "shared_memory_byte_size", None))


def told_place(place: SharedPlace) -> dict[str, Any]:
    """The parameters of an output that lies in a region."""
    told = {REGION: place.region, "shared_memory_byte_size": place.byte_size}
    return {**told, "shared_memory_offset": place.offset} if place.offset else told


def _size(where: str, parameters: Parameters, key: str, default: int | None) -> int:
    value = parameters.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 62:
        raise BadRequest(f"{where}.parameters.{key} = {value!r}, must be a number of bytes")
    return value
