"""Status and peer ports of the gateway in a pod: health, metrics, and load reports of peers.

status port   /healthz   liveness        /readyz   readiness        /metrics
peer port     /counts    from other replicas of this gateway only
"""

from collections.abc import Callable

from aiohttp import web

from pilotlight.gateway.addresses import Address, bind, bind_ipv6
from pilotlight.wire.prometheus_text import CONTENT_TYPE


class StatusServer:
    """`not_ready_reason` returns why the gateway is not ready, `metrics` the page; `peers` has a port of its own."""

    def __init__(
        self, not_ready_reason: Callable[[], str], metrics: Callable[[], bytes], peers: web.Application
    ) -> None:
        self._not_ready_reason, self._metrics = not_ready_reason, metrics
        self._runners = (self._runner(self._app()), self._runner(peers))

    async def start(self, host: str, status_port: int, peer_port: int) -> None:
        for runner, port in zip(self._runners, (status_port, peer_port), strict=True):
            await runner.setup()
            address = Address(host, port)
            sockets = [bind(address), bind_ipv6(address.ipv6_equivalent) if address.ipv6_equivalent else None]
            for listener in sockets:
                if listener is not None:
                    await web.SockSite(runner, listener).start()

    async def close(self) -> None:
        for runner in self._runners:
            await runner.cleanup()

    def _app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._page)
        return app

    def _runner(self, app: web.Application) -> web.AppRunner:
        return web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        reason = self._not_ready_reason()
        return web.Response(status=503 if reason else 200, text=f"{reason or 'ok'}\n")

    async def _page(self, request: web.Request) -> web.Response:
        return web.Response(body=self._metrics(), headers={"Content-Type": CONTENT_TYPE})
