"""The control API as a program of its own, over any target: what `platformctl api` runs, on a machine or in a cluster.

It has no engine: services are the target's, asked in threads. Canaries are looked after here too, since somebody must.
"""

import asyncio
import logging
import signal
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from aiohttp import web

from pilotlight.api.app import make_target_app
from pilotlight.api.backing import TargetBacking
from pilotlight.canary.bell import Bell, looked_after
from pilotlight.canary.loop import follow
from pilotlight.errors import PlatformError, UsageError
from pilotlight.microservices.api.desk import Desk
from pilotlight.targets.local.home import ENV_HOME, Home
from pilotlight.targets.target import Target

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})

log = logging.getLogger("pilotlight.api")


@dataclass(frozen=True, slots=True)
class Settings:
    """`told` is called with the address once it answers; `platform` is where microservices run."""

    home: Home
    token: str
    platform: str
    host: str = "127.0.0.1"
    port: int = 8091
    tls_cert: str = ""
    tls_key: str = ""
    environ: Mapping[str, str] = field(default_factory=dict)
    told: Callable[[str], None] = print


async def serve(target: Target, given: Settings) -> None:
    """Until SIGTERM or SIGINT. What runs is not touched by its end."""
    stop, backing, bell = asyncio.Event(), TargetBacking(target), Bell()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    desk = Desk(given.home, {**given.environ, ENV_HOME: str(given.home.root)}, given.platform)
    app = make_target_app(backing, given.token, desk, loopback=given.host in LOOPBACK)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=5.0)
    await runner.setup()
    try:
        given.told(await _listening(runner, given))
        async with looked_after(bell, partial(follow, target, bell)):
            await stop.wait()
    finally:
        await runner.cleanup()
        backing.close()


async def _listening(runner: web.AppRunner, given: Settings) -> str:
    context = tls(given.tls_cert, given.tls_key)
    try:
        await web.TCPSite(runner, given.host, given.port, ssl_context=context).start()
    except OSError as error:
        reason = error.strerror or error
        raise PlatformError(f"cannot listen on {given.host}:{given.port}: {reason}", "choose with --port") from None
    host = f"[{given.host}]" if ":" in given.host else given.host
    return f"{'https' if context else 'http'}://{host}:{runner.addresses[0][1]}"


def tls(cert: str, key: str) -> ssl.SSLContext | None:
    if not cert and not key:
        return None
    if not cert or not key:
        raise UsageError(f"--{'tls-cert' if key else 'tls-key'} is missing: TLS needs a certificate and its key")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"--tls-cert {cert} and --tls-key {key} do not fit together: {error}") from None
    return context
