"""Routes of the manifest editor: the manifest of a service, validation, comparison with what runs, and deploy.

Planning blocks, so it runs in a few threads of its own; its modules are imported with the first request.
"""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, cast

from aiohttp import web
from msgspec import Struct, json

from pilotlight.api.middlewares import read_small_body
from pilotlight.api.route_types import Route
from pilotlight.api.services import SERVICE, key_of
from pilotlight.api.target_adapters import BACKEND, ENGINE
from pilotlight.console.actions import BlockingTarget
from pilotlight.console.sessions import PREFIX
from pilotlight.errors import PlatformError, TimedOut

if TYPE_CHECKING:
    from pilotlight.targets.local.home_directory import Home
    from pilotlight.targets.target import Target

MAX_BYTES: Final = 256 << 10
MAX_THREADS: Final = 4
TIMEOUT_S: Final = 120.0  # a comparison reads the models
THREADS: Final = web.AppKey("manifest_threads", ThreadPoolExecutor)


class ManifestBody(Struct, frozen=True):
    """Text of the editor. `service`: NAMESPACE/NAME that is edited; empty: any service may be deployed."""

    text: str
    service: str = ""


async def stored_manifest(request: web.Request) -> web.Response:
    """Return the manifest of a service as it was deployed, and the replica bounds of its plan."""
    from pilotlight.console.manifest_plans import stored_manifest

    return web.json_response(await asyncio.to_thread(stored_manifest, _target(request), key_of(request)))


async def plan(request: web.Request) -> web.Response:
    """Return all problems with their lines; `compare` adds what a deploy would change."""
    body, target, home = await _body(request), _target(request), _home(request)
    compares = request.path.endswith("/compare")

    def work() -> dict[str, Any]:
        from pilotlight.console import manifest_plans

        return manifest_plans.validate(body.text, body.service, target, home, compares=compares)

    running = asyncio.get_running_loop().run_in_executor(request.app[THREADS], work)
    try:
        return web.json_response(await asyncio.wait_for(running, TIMEOUT_S))
    except TimeoutError:
        message = f"the manifest was not planned within {TIMEOUT_S:g} s"
        raise TimedOut(message, "platformctl diff has no limit") from None


async def deploy(request: web.Request) -> web.StreamResponse:
    """Deploy the manifest. Lines of JSON report the steps; the last one has the applied services, or the error.

    It continues when the client disconnects.
    """
    body, target, home = await _body(request), _target(request), _home(request)
    loop, lines = asyncio.get_running_loop(), asyncio.Queue[dict[str, Any]]()

    def send(**line: Any) -> None:
        loop.call_soon_threadsafe(lines.put_nowait, line)

    def work() -> None:
        from pilotlight.console import manifest_plans
        from pilotlight.spec.problems import InvalidDocument, problem_rows

        def log(step: str, text: str) -> None:
            send(step=step, text=text)

        try:
            send(applied=manifest_plans.deploy(body.text, body.service, target, home, log))
        except InvalidDocument as error:
            send(error="the manifest is not valid", hint="", problems=problem_rows(error.problems))
        except PlatformError as error:
            send(error=str(error), hint=error.hint)
        except Exception as error:
            send(error=f"{type(error).__name__} in the control process: {error}", hint="")
            raise

    response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
    await response.prepare(request)
    running, line = loop.run_in_executor(request.app[THREADS], work), dict[str, Any]()
    while not line.keys() & {"applied", "error"}:
        line = await lines.get()
        await response.write(json.encode(line) + b"\n")
    await running
    return response


async def _body(request: web.Request) -> ManifestBody:
    return json.decode(await read_small_body(request, MAX_BYTES), type=ManifestBody)


def _target(request: web.Request) -> "Target":
    target = BlockingTarget(request.app[BACKEND], ENGINE in request.app, asyncio.get_running_loop())
    return cast("Target", target)


def _home(request: web.Request) -> "Home | None":
    """Return the home that keeps snapshots of models; None: the target's models are not of this machine."""
    return request.app[ENGINE].home if ENGINE in request.app else None


async def thread_lifespan(app: web.Application) -> AsyncIterator[None]:
    """Provide the threads; those that still plan when the application ends are not awaited."""
    app[THREADS] = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="manifests")
    yield
    app[THREADS].shutdown(wait=False, cancel_futures=True)


ROUTES: Final = (
    Route("GET", f"{PREFIX}{SERVICE}/manifest", stored_manifest),
    Route("POST", f"{PREFIX}/api/manifests/validate", plan),
    Route("POST", f"{PREFIX}/api/manifests/compare", plan),
    Route("POST", f"{PREFIX}/api/manifests/deploy", deploy),
)
