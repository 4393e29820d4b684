"""The standalone control API over any target: what `platformctl api` runs, on a machine or in a cluster.

It has no engine: the target is called in threads. Canaries of the target are reconciled here too.
"""

import asyncio
import logging
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from aiohttp import web

from pilotlight.api.target_adapters import TargetBackend
from pilotlight.canaries.controller import WakeEvent, controller_thread, run_controller
from pilotlight.control_plane.app import make_target_app
from pilotlight.control_plane.idle_connections import close_idle_connections
from pilotlight.errors import PlatformError, UsageError
from pilotlight.microservices.api.api_context import ApiContext
from pilotlight.targets.local.home_directory import ENV_HOME, Home
from pilotlight.targets.target import Target
from pilotlight.wire.tls import ReloadingTls, TlsFiles, UnusableFiles

log = logging.getLogger("pilotlight.api")
LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of `serve`. `on_ready` is called with the URL once it listens; `platform` is where microservices run."""

    home: Home
    token: str
    platform: str
    host: str = "127.0.0.1"
    port: int = 8091
    tls_cert: str = ""
    tls_key: str = ""
    metrics_token: str = ""
    environ: Mapping[str, str] = field(default_factory=dict)
    on_ready: Callable[[str], None] = print


async def serve(target: Target, settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. Services and microservices continue to run."""
    stop, backend, wake_event = asyncio.Event(), TargetBackend(target), WakeEvent()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    context = ApiContext(settings.home, {**settings.environ, ENV_HOME: str(settings.home.root)}, settings.platform)
    app = make_target_app(
        backend, settings.token, context, loopback=settings.host in LOOPBACK, metrics_token=settings.metrics_token
    )
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=5.0, auto_decompress=False)
    await runner.setup()
    tls = tls_of(settings.tls_cert, settings.tls_key)
    reloads = asyncio.create_task(tls.reload_forever(log.info, log.warning)) if tls else None
    try:
        settings.on_ready(await _listen(runner, settings, tls))
        context.restore()
        close_idle_connections(runner)
        async with controller_thread(wake_event, partial(run_controller, target, wake_event)):
            await stop.wait()
    finally:
        if reloads is not None:
            reloads.cancel()
        await runner.cleanup()
        backend.close()


async def _listen(runner: web.AppRunner, settings: Settings, tls: ReloadingTls | None) -> str:
    context = tls.context if tls else None
    try:
        await web.TCPSite(runner, settings.host, settings.port, ssl_context=context).start()
    except OSError as error:
        reason = error.strerror or error
        raise PlatformError(
            f"cannot listen on {settings.host}:{settings.port}: {reason}", "choose with --port"
        ) from None
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{'https' if tls else 'http'}://{host}:{runner.addresses[0][1]}"


def tls_of(cert: str, key: str) -> ReloadingTls | None:
    """Return the TLS of the API, if it is configured. Raise UsageError for files that cannot be used."""
    if not cert and not key:
        return None
    if not cert or not key:
        raise UsageError(f"--{'tls-cert' if key else 'tls-key'} is missing: TLS needs a certificate and its key")
    try:
        return ReloadingTls(TlsFiles(cert, key), ["http/1.1"])
    except UnusableFiles as error:
        raise UsageError(f"--tls-cert and --tls-key: {error}") from None
