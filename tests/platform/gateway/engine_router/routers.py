"""A real router process, and the files by which the platform announces its engines."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tests.platform.gateway.linked import DEADLINE_S, ask

from pilotlight.gateway.routing_table import Replica

ENGINE = {"PILOTLIGHT_ROUTER_ENGINE": "llama-engine"}
# `python -m pilotlight.gateway route`, which waits for a body as long as a busy machine may take to send it.
PATIENT = """
from pilotlight.gateway import __main__
from pilotlight.gateway.engine_router import load_balancer as data_plane

data_plane.BODY_WAIT_S = 60.0
raise SystemExit(__main__.main(["route"]))
"""


def announce(folder: Path, workload: str, replicas: Sequence[Replica]) -> None:
    """As the platform does it: replaced whole."""
    file = folder / "default" / f"{workload}.json"
    file.parent.mkdir(exist_ok=True)
    fresh = file.with_suffix(".new")
    listed = [{"id": each.id, "port": each.port, "host": each.host} for each in replicas]
    fresh.write_text(json.dumps(listed))
    fresh.replace(file)


@asynccontextmanager
async def router(
    folder: Path, strategy: str, decoder: str = "", health_s: str = "0.1", **more: str
) -> AsyncIterator[int]:
    """Its port; `more` are settings of the router."""
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PILOTLIGHT_", "INFERENCE_"))},
        **ENGINE, "PILOTLIGHT_ROUTER_STRATEGY": strategy, "PILOTLIGHT_ROUTER_DECODER": decoder,
        "PILOTLIGHT_ROUTER_HEALTH_CHECK_INTERVAL_S": health_s, "PILOTLIGHT_ENDPOINTS_DIR": str(folder),
        "INFERENCE_HTTP_PORT": "0", "INFERENCE_HOST": "127.0.0.1",
        **{f"PILOTLIGHT_ROUTER_{name}": value for name, value in more.items()},
    }  # fmt: skip
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", PATIENT, env=environ, stderr=subprocess.PIPE)
    assert process.stderr is not None
    try:
        async with asyncio.timeout(DEADLINE_S):
            said = {"event": ""}
            while said["event"] != "router.listening":
                said = json.loads(await process.stderr.readline())
        yield int(said["http_port"])
    finally:
        process.terminate()
        await asyncio.wait_for(process.communicate(), DEADLINE_S)


async def ready(port: int) -> bool:
    return (await ask(port, "/ready")).status == 200


async def until_ready(port: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await ready(port):
            await asyncio.sleep(0.02)
