"""TLS of the HTTP and the gRPC port; imported only where a certificate is set. The metrics port stays plain."""

import asyncio
from functools import partial

from pilotlight.wire.tls import ReloadingTls, TlsFiles, UnusableFiles
from pilotlight_predictor.config import ServerSettings
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.observability.logs import log


class PortTls:
    def __init__(self, settings: ServerSettings) -> None:
        """Raise LoadFailed, which names the setting, for files that cannot be used."""
        if not settings.tls_cert:
            raise LoadFailed("--tls-cert is missing: --tls-key and --tls-client-ca need a certificate")
        files = TlsFiles(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
        try:
            self._http, self._grpc = ReloadingTls(files, ["http/1.1"]), ReloadingTls(files, ["h2"])
        except UnusableFiles as error:
            raise LoadFailed(f"--tls-cert, --tls-key or --tls-client-ca: {error}") from None
        self.http, self.grpc = self._http.context, self._grpc.context

    async def reload_forever(self) -> None:
        report, warn, debug = (partial(log, "tls", level=level) for level in ("INFO", "WARNING", "DEBUG"))
        await asyncio.gather(self._http.reload_forever(report, warn), self._grpc.reload_forever(debug, debug))
