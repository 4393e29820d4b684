"""Threads share a Client, tasks an AsyncClient; what is cancelled leaves nothing behind."""

import asyncio
import gc
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tests.eventually import eventually_async
from tests.platform.client.scripted_server import METADATA, RESULT, SILENCE, reply, scripted
from tests.serving import RunningServer

from pilotlight.client import AsyncClient, Client


def rows(number: int) -> "np.ndarray[tuple[int, ...], np.dtype[np.float32]]":
    return np.full((1 + number % 3, 4), number, np.float32)


def test_threads_share_a_client(served: RunningServer) -> None:
    with Client(served.url) as client, ThreadPoolExecutor(8) as pool:
        results = pool.map(lambda number: client.infer("rows", rows(number))["y"], range(200))
        for number, result in enumerate(results):
            np.testing.assert_array_equal(result, rows(number))


def test_tasks_share_a_client(served: RunningServer) -> None:
    async def scene() -> None:
        async with AsyncClient(served.url) as client:
            results = await asyncio.gather(*(client.infer("rows", rows(number)) for number in range(200)))
        for number, result in enumerate(results):
            np.testing.assert_array_equal(result["y"], rows(number))

    asyncio.run(scene())


def test_a_cancelled_call_closes_its_connection_and_the_next_one_works() -> None:
    async def scene() -> None:
        with scripted(reply(200, METADATA), SILENCE, reply(200, RESULT)) as server:
            async with AsyncClient(server.url) as client:
                call = asyncio.create_task(client.infer("m", [1.0]))
                await eventually_async(lambda: len(server.requests) == 2, "the request to arrive")
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call
                assert (await client.infer("m", [1.0]))["y"] == [2.0]
                assert server.connections == 2

    asyncio.run(scene())


def test_a_client_of_another_loop_is_refused(served: RunningServer) -> None:
    client = AsyncClient(served.url)

    async def once() -> None:
        await client.models()
        await client.close()

    asyncio.run(once())
    with pytest.raises(RuntimeError, match="create one per loop"):
        asyncio.run(once())


def test_a_client_that_is_let_go_closes_its_connections(served: RunningServer) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Client(served.url).models()
        gc.collect()
    assert not [each for each in caught if "unclosed" in str(each.message)]
