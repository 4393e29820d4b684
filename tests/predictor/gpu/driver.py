"""A driver of a GPU that does not exist, behind the names that cuda_driver.py calls: its memory is this process's own.

What is unmapped is overwritten, so that weights which come back were copied. A call named in `refused` fails.
"""

import ctypes
import mmap
from collections.abc import Callable
from typing import Any

GRAIN = 4096
OK, OUT_OF_MEMORY, INVALID = 0, 2, 1
GONE = 0xEE


class Driver:
    def __init__(self, free: int = 1 << 30) -> None:
        self.free, self.total = free, free
        self.refused: dict[str, int] = {}  # call → how many of them are granted before it fails
        self.called: list[str] = []
        self.mapped: dict[int, int] = {}
        self.allocated: dict[int, Any] = {}
        self.registered: set[int] = set()
        self.stack_limit = 1024
        self._reserved: dict[int, mmap.mmap] = {}

    def __getattr__(self, name: str) -> Callable[..., int]:
        act = getattr(type(self), f"_{name.removesuffix('_v2')}", None)

        def call(*arguments: Any) -> int:
            self.called.append(name)
            if name in self.refused:
                self.refused[name] -= 1
                if self.refused[name] < 0:
                    return OUT_OF_MEMORY
            return OK if act is None else int(act(self, *arguments) or OK)

        return call

    def _cuMemGetInfo(self, free: Any, total: Any) -> None:
        free._obj.value, total._obj.value = self.free, self.total

    def _cuCtxGetLimit(self, limit: Any, _: int) -> None:
        limit._obj.value = self.stack_limit

    def _cuCtxSetLimit(self, _: int, limit: int) -> None:
        self.stack_limit = limit

    def _cuMemAlloc(self, pointer: Any, size: int) -> None:
        memory = ctypes.create_string_buffer(size)
        pointer._obj.value = ctypes.addressof(memory)
        self.allocated[pointer._obj.value] = memory

    def _cuMemHostAlloc(self, pointer: Any, size: int, _: int) -> None:
        self._cuMemAlloc(pointer, size)

    def _cuMemFree(self, pointer: int) -> None:
        del self.allocated[pointer]

    _cuMemFreeHost = _cuMemFree

    def _cuMemHostRegister(self, address: int, _: int, __: int) -> None:
        self.registered.add(address)

    def _cuMemHostUnregister(self, address: int) -> None:
        self.registered.remove(address)

    def _cuMemGetAllocationGranularity(self, grain: Any, *_: object) -> None:
        grain._obj.value = GRAIN

    def _cuMemAddressReserve(self, pointer: Any, size: int, *_: object) -> None:
        pages = mmap.mmap(-1, size)
        pointer._obj.value = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        self._reserved[pointer._obj.value] = pages

    def _cuMemAddressFree(self, pointer: int, _: int) -> int:
        if any(pointer <= address < pointer + len(self._reserved[pointer]) for address in self.mapped):
            return INVALID
        del self._reserved[pointer]
        return OK

    def _cuMemMap(self, address: int, size: int, *_: object) -> int:
        if address in self.mapped:
            return INVALID
        self.mapped[address] = size
        return OK

    def _cuMemUnmap(self, address: int, size: int) -> int:
        if self.mapped.pop(address, 0) != size:
            return INVALID
        ctypes.memset(address, GONE, size)
        return OK

    def _copy(self, to: int, source: int, size: int, *_: object) -> None:
        ctypes.memmove(to, source, size)

    _cuMemcpyHtoD = _cuMemcpyHtoDAsync = _cuMemcpyDtoHAsync = _copy
