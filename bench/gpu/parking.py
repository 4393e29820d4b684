"""Parking on a GPU: a model of bf16 weights leaves the device and comes back, in this process and in a server.

    PYTHONPATH=platform:predictor python bench/gpu/parking.py > bench/results/parking.json

Prints one JSON document. The limit of the link is measured in the same run, by one plain copy of as many bytes from
pinned memory.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from ctypes import byref, c_void_p
from pathlib import Path
from statistics import median
from time import sleep
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
from msgspec.structs import replace as changed
from serve import _port, _status
from torch_backend import STACK, WIDTH, _stack, _write, spec, timed

from pilotlight_predictor.backends.base import Device
from pilotlight_predictor.backends.torch import backend
from pilotlight_predictor.core.tensors import tensor
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.gpu.cuda_driver import Context
from pilotlight_predictor.gpu.parked_weights import ParkedWeights, Streams
from pilotlight_predictor.gpu.safetensors_upload import Block, PinnedMemory, WeightTransfer

MIB = 1 << 20
GIB = 1 << 30
TENSORS = f"""
INPUTS = {{"x": ("FP32", [-1, {WIDTH}])}}
OUTPUTS = {{"y": ("FP32", [-1, {WIDTH}])}}
"""


def make(folder: Path, gigabytes: float) -> None:
    """In a process of its own, so that the measured one has the GPU's memory for itself."""
    import torch

    torch.manual_seed(0)
    layers = max(1, round(gigabytes * 1e9 / (WIDTH * WIDTH * 2)))
    source = STACK.format(width=WIDTH, layers=layers) + TENSORS
    _write(folder / "large", source, _stack(WIDTH, layers, torch.bfloat16))


def through_the_backend(path: Path, context: Context, wakes: int) -> dict[str, Any]:
    """What a server does with it: load, answer, park, wake, answer."""
    free = {"before": context.memory_info()[0]}
    wanted = changed(spec(path, Device("cuda")), parkable=True)
    load_s, instance = timed(lambda: backend.load(changed(wanted, prefetched=backend.prefetch(wanted))))
    x = {"x": tensor(np.linspace(-1, 1, WIDTH, dtype=np.float32)[None])}
    before = instance.run(x)["y"].array.tobytes()
    free["awake"] = context.memory_info()[0]
    parking = instance.parking
    assert parking is not None
    prepare_s, _ = timed(parking.prepare)
    first_park_s, _ = timed(parking.park)
    free["parked"] = context.memory_info()[0]
    first_wake_s, _ = timed(parking.wake)
    first_answer_s, after = timed(lambda: instance.run(x)["y"].array.tobytes())
    park_s, wake_s, same = [], [], [after == before]
    for _ in range(wakes):
        park_s.append(timed(parking.park)[0])
        wake_s.append(timed(parking.wake)[0])
        same.append(instance.run(x)["y"].array.tobytes() == before)
    free["after"] = context.memory_info()[0]
    size = parking.size
    instance.close()
    return {
        "bytes": size, "load_s": load_s, "prepare_s": prepare_s, "first_park_s": first_park_s, "park_s": median(park_s),
        "first_wake_s": first_wake_s, "wake_s": median(wake_s), "wakes_s": wake_s,
        "gb_per_s": size / median(wake_s) / 1e9, "first_answer_after_wake_s": first_answer_s,
        "answer_before_is_answer_after": all(same), "free_gpu_bytes": free,
    }  # fmt: skip


def limit(context: Context, size: int, times: int = 5) -> dict[str, Any]:
    """One plain copy from pinned memory into memory that is there already."""
    host, pointer = PinnedMemory(context, size), context.allocate(size)

    def copy() -> None:
        with Streams(context, 1) as streams:
            streams.copy("cuMemcpyHtoDAsync_v2", pointer, host.address, size)

    copy()
    took = [timed(copy)[0] for _ in range(times)]
    context.free(pointer)
    return {"seconds": median(took), "gb_per_s": size / median(took) / 1e9}


def through_the_server(path: Path, context: Context, times: int) -> dict[str, Any]:
    """As a client sees it: the seconds of a request to a parked model, and of one to a model that is awake."""
    flags = ("--device", "cuda", "--http-port", "0", "--metrics-port", "-1", "--log-format", "json")
    command = [sys.executable, "-m", "pilotlight_predictor", "--model-path", str(path.parent), "--model-name", "m"]
    server = subprocess.Popen([*command, *flags, "--park-memory", "50%"], stderr=subprocess.PIPE, text=True)
    try:
        url = f"http://127.0.0.1:{_port(server.stderr or ())}"
        while _status(f"{url}/v2/health/ready") != 200:
            sleep(0.05)
        return _asked(url, context, times)
    finally:
        server.terminate()
        server.wait(60)


def _asked(url: str, context: Context, times: int) -> dict[str, Any]:
    x = {"name": "x", "shape": [1, WIDTH], "datatype": "FP32", "data": [0.5] * WIDTH}
    ask = Request(f"{url}/v2/models/m/infer", json.dumps({"inputs": [x]}).encode())
    park = Request(f"{url}/v2/repository/models/m/park", b"")
    before = _read(ask)
    awake_s = [timed(lambda: _read(ask))[0] for _ in range(times)]
    free = {"awake": context.memory_info()[0]}
    first_park_s, _ = timed(lambda: _read(park))
    free["parked"] = context.memory_info()[0]
    parked_s, same = [], []
    for _ in range(times):
        took, answer = timed(lambda: _read(ask))
        parked_s.append(took)
        same.append(answer == before)
        _read(park)
    return {
        "awake_answer_s": median(awake_s), "first_park_s": first_park_s, "parked_answer_s": median(parked_s),
        "parked_answers_s": parked_s, "answers_are_the_same": all(same), "free_gpu_bytes": free,
    }  # fmt: skip


def _read(request: Request) -> bytes:
    return bytes(urlopen(request, timeout=120).read())


def ways_to_wake(path: Path) -> list[dict[str, Any]]:
    """The same weights by other sizes of pieces and numbers of streams."""
    blocks = [block for block, _ in WeightTransfer(path, 0, during_import=False, parkable=True).start().wait()]
    weights = ParkedWeights(blocks)
    weights.park()
    found = []
    for piece in (32 * MIB, 64 * MIB, 256 * MIB, GIB, 16 * GIB):
        for streams in (1, 2):
            took = []
            for _ in range(3):
                wake_s, _ = timed(lambda p=piece, s=streams: weights.wake(p, s))  # type: ignore[misc]
                took.append(wake_s)
                weights.park()
            found.append({"piece_mib": piece // MIB, "streams": streams, "gb_per_s": weights.size / min(took) / 1e9})
    return found


def without_room(path: Path, context: Context) -> dict[str, Any]:
    """Another has the device's memory: a wake fails, the weights stay parked, and come back when there is room."""
    weights = ParkedWeights(
        [block for block, _ in WeightTransfer(path, 0, during_import=False, parkable=True).start().wait()]
    )
    weights.park()
    taken = Block.allocate(context, context.memory_info()[0] - weights.size // 2, parks=False)
    try:
        weights.wake()
        said = "no error"
    except LoadFailed as error:
        said = str(error)
    left, parked = context.memory_info()[0], weights.parked
    del taken
    weights.wake()
    return {"said": said, "stayed_parked": parked, "free_after_failure": left, "woke_later": not weights.parked}


def allocating(context: Context, size: int) -> dict[str, float]:
    """What a range of addresses costs at load, against plain memory; the first of each is not counted."""
    found: dict[str, list[float]] = {"plain_s": [], "range_s": []}
    for _ in range(4):
        for name, parks in (("plain_s", False), ("range_s", True)):
            took, block = timed(lambda p=parks: Block.allocate(context, size, p))  # type: ignore[misc]
            found[name].append(took)
            del block
    return {name: median(took[1:]) for name, took in found.items()}


def pinning(context: Context, size: int = 2 * GIB) -> dict[str, Any]:
    """Two ways to get pinned memory: the driver's own, and huge pages that threads touched before it pins them."""
    address = c_void_p()
    alloc_s, _ = timed(lambda: context.call("cuMemHostAlloc", byref(address), size, 0))
    context.call("cuMemFreeHost", address)
    copy_s, _ = timed(lambda: PinnedMemory(context, size))
    return {"bytes": size, "host_alloc_s": alloc_s, "host_copy_s": copy_s}


def measure(folder: Path, wakes: int) -> dict[str, Any]:
    import torch

    path, context = folder / "large" / "model.safetensors", Context(0)
    found: dict[str, Any] = {"gpu": torch.cuda.get_device_name(0), "torch": torch.__version__}
    parts: dict[str, Callable[[], Any]] = {
        "backend": lambda: through_the_backend(path, context, wakes),
        "server": lambda: through_the_server(path, context, wakes),
        "limit": lambda: limit(context, found["backend"]["bytes"]),
        "ways_to_wake": lambda: ways_to_wake(path),
        "without_room": lambda: without_room(path, context),
        "allocating": lambda: allocating(context, path.stat().st_size),
        "pinning": lambda: pinning(context),
    }
    for name, part in parts.items():
        try:
            found[name] = part()
        except Exception as error:  # the other parts are worth their figures all the same
            found[name] = {"failed": f"{type(error).__name__}: {error}"}
    with suppress(KeyError):
        found["share_of_limit"] = found["backend"]["gb_per_s"] / found["limit"]["gb_per_s"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=8.6, help="size of the model's bf16 weights")
    parser.add_argument("--wakes", type=int, default=7, help="how often it parks and wakes after the first time")
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.make:
        make(options.make, options.gigabytes)
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--make", folder, "--gigabytes", str(options.gigabytes)]
        subprocess.run(command, check=True, stdout=sys.stderr)
        print(json.dumps(measure(Path(folder), options.wakes), indent=2))


if __name__ == "__main__":
    main()
