"""What the gateway in a pod answers about itself, apart from the port of the services: health, metrics, and the peers.

status port   /healthz   the process lives        /readyz   requests may come        /metrics
peer port     /counts    from other replicas of this gateway, and from nobody else
"""

from collections.abc import Callable

from aiohttp import web

from pilotlight.gateway.addresses import Address, bind, bind_twin
from pilotlight.wire.prometheus_text import CONTENT_TYPE


class Pages:
    """`unready` says why no request should come, `metrics` makes the page; `peers` answers on a port of its own."""

    def __init__(self, unready: Callable[[], str], metrics: Callable[[], bytes], peers: web.Application) -> None:
        self._unready, self._metrics = unready, metrics
        self._runners = (self._runner(self._app()), self._runner(peers))

    async def start(self, host: str, status_port: int, peer_port: int) -> None:
        for runner, port in zip(self._runners, (status_port, peer_port), strict=True):
            await runner.setup()
            address = Address(host, port)
            sockets = [bind(address), bind_twin(address.twin) if address.twin else None]
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
        why = self._unready()
        return web.Response(status=503 if why else 200, text=f"{why or 'ok'}\n")

    async def _page(self, request: web.Request) -> web.Response:
        return web.Response(body=self._metrics(), headers={"Content-Type": CONTENT_TYPE})
