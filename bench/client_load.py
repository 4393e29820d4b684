"""Load by one Python client, with numpy arrays in and out: python -m bench.client_load CLIENT PORT MODEL N SECONDS

Prints the requests/s of N concurrent callers as a JSON line. Each client has the set-up that its documentation gives
for many requests at once: tritonclient.http greenlets and a connection for each, its asyncio twin a session of aiohttp.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

from bench.models import IMAGE_SHAPE, IRIS_ROW

WARM_UP_S = 0.5


def array_for(model: str) -> Any:
    return np.array([IRIS_ROW], np.float32) if model == "iris" else np.ones(IMAGE_SHAPE, np.float32)


async def pilotlight(port: int, model: str, callers: int, seconds: float) -> float:
    from pilotlight.client import AsyncClient

    x = array_for(model)
    async with AsyncClient(f"http://127.0.0.1:{port}") as client:

        async def once() -> None:
            (await client.infer(model, {"x": x}))["y"].sum()

        return await _rate(once, callers, seconds)


async def triton_aio(port: int, model: str, callers: int, seconds: float) -> float:
    from tritonclient.http import InferInput
    from tritonclient.http.aio import InferenceServerClient

    x = array_for(model)
    async with InferenceServerClient(f"127.0.0.1:{port}", conn_limit=callers) as client:

        async def once() -> None:
            tensor = InferInput("x", x.shape, "FP32")
            tensor.set_data_from_numpy(x)
            (await client.infer(model, [tensor])).as_numpy("y").sum()

        return await _rate(once, callers, seconds)


async def _rate(once: Callable[[], Awaitable[None]], callers: int, seconds: float) -> float:
    async def call(end: float) -> int:
        count = 0
        while time.perf_counter() < end:
            await once()
            count += 1
        return count

    for length in (WARM_UP_S, seconds):
        began = time.perf_counter()
        counts = await asyncio.gather(*(call(began + length) for _ in range(callers)))
    return sum(counts) / (time.perf_counter() - began)


def triton(port: int, model: str, callers: int, seconds: float) -> float:
    import gevent
    from tritonclient.http import InferenceServerClient, InferInput

    x = array_for(model)
    client = InferenceServerClient(f"127.0.0.1:{port}", concurrency=callers)

    def call(end: float) -> int:
        count = 0
        while time.perf_counter() < end:
            tensor = InferInput("x", x.shape, "FP32")
            tensor.set_data_from_numpy(x)
            client.infer(model, [tensor]).as_numpy("y").sum()
            count += 1
        return count

    for length in (WARM_UP_S, seconds):
        began = time.perf_counter()
        greenlets = gevent.joinall([gevent.spawn(call, began + length) for _ in range(callers)], raise_error=True)
    return sum(each.value for each in greenlets) / (time.perf_counter() - began)


CLIENTS: dict[str, Callable[[int, str, int, float], float]] = {
    "pilotlight": lambda *load: asyncio.run(pilotlight(*load)),
    "triton": triton,
    "triton_aio": lambda *load: asyncio.run(triton_aio(*load)),
}

if __name__ == "__main__":
    name, port, model, callers, seconds = sys.argv[1:]
    print(json.dumps({"rps": CLIENTS[name](int(port), model, int(callers), float(seconds))}))
