"""The stand-in of libcuda (libcuda.c), compiled once for a machine, and what tests and stand-in engines do with it."""

import ctypes
import os
import subprocess
from ctypes import byref, c_char, c_size_t, c_uint64, c_void_p
from hashlib import sha256
from pathlib import Path
from tempfile import gettempdir
from typing import Final

from pilotlight.targets.local.supervisor.parking.cuda_checkpoint import ENV_LIBCUDA

SOURCE: Final = Path(__file__).with_name("libcuda.c")
ENV_FOLDER, ENV_MEMORY, ENV_SIZE = "LIBCUDA_FOLDER", "LIBCUDA_MEMORY", "LIBCUDA_SIZE"
SECRET: Final = b"weights"


def library() -> Path:
    """Return the path of the compiled library, whose name processes show in their maps as that of the real one."""
    digest = sha256(SOURCE.read_bytes()).hexdigest()[:12]
    folder = Path(gettempdir()) / f"libcuda-stand-in-{os.getuid()}-{digest}"
    if not (folder / "libcuda.so.1").exists():
        folder.mkdir(mode=0o700, exist_ok=True)
        built = folder / f"{os.getpid()}.so"
        command = ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-o", str(built), str(SOURCE)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        built.rename(folder / "libcuda.so.1")
    return folder / "libcuda.so.1"


def variables(folder: Path, memory: int = 1 << 30) -> dict[str, str]:
    """The variables of processes that find the stand-in, with a GPU of so many bytes; `folder` has its state."""
    folder.mkdir(parents=True, exist_ok=True)
    return {ENV_LIBCUDA: str(library()), ENV_FOLDER: str(folder), ENV_MEMORY: str(memory)}


def fail(folder: Path, function: str, code: int) -> None:
    (folder / f"fail.{function}").write_text(str(code))


class GpuMemory:
    """Memory of the stand-in's GPU that this process holds, with a context. Raise MemoryError without enough."""

    def __init__(self, size: int) -> None:
        self._cuda, self._size, self._pointer = ctypes.CDLL(os.environ[ENV_LIBCUDA]), size, c_uint64()
        assert self._cuda.cuInit(0) == 0
        self._check(self._cuda.cuDevicePrimaryCtxRetain(byref(c_void_p()), 0))
        self.allocate()

    def allocate(self) -> None:
        self._check(self._cuda.cuMemAlloc_v2(byref(self._pointer), c_size_t(self._size)))
        self._check(self._cuda.cuMemcpyHtoD_v2(self._pointer, SECRET, c_size_t(len(SECRET))))

    def free(self) -> None:
        self._cuda.cuMemFree_v2(self._pointer, c_size_t(self._size))

    def read(self) -> bytes:
        """Return what was written; waits while the process is locked."""
        found = (c_char * len(SECRET))()
        self._check(self._cuda.cuMemcpyDtoH_v2(found, self._pointer, c_size_t(len(SECRET))))
        return bytes(found)

    @staticmethod
    def _check(code: int) -> None:
        if code:
            raise MemoryError(f"CUDA error {code}")


def from_environment() -> GpuMemory | None:
    """Return the memory of a stand-in engine that is to use the GPU; None: it is not."""
    size = os.environ.get(ENV_SIZE)
    return GpuMemory(int(size)) if size else None
