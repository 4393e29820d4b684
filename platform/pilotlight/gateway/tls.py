"""TLS of the gateway: HTTPS listeners and gRPC; imported only where a certificate is set."""

from functools import partial
from pathlib import Path
from typing import Any

from pilotlight.errors import UsageError
from pilotlight.gateway.listeners import Address
from pilotlight.gateway.metrics_and_reports import log
from pilotlight.wire.tls import ReloadingTls, TlsFiles, UnusableFiles


class GatewayTls:
    """`host` is where gRPC ports listen, in place of loopback."""

    def __init__(self, files: TlsFiles, host: str) -> None:
        """Raise UsageError for files that cannot be used."""
        try:
            self.http = ReloadingTls(files, ["http/1.1"])
        except UnusableFiles as error:
            raise UsageError(f"--tls-cert, --tls-key or --tls-client-ca: {error}") from None
        self._files, self._host = files, host

    async def reload_forever(self) -> None:
        await self.http.reload_forever(partial(log, "tls"), partial(log, "tls", level="WARNING"))

    def grpc_address(self, address: Address) -> Address:
        """Return the address with TLS of a service's port on loopback, 127.0.0.1 or ::1."""
        if self._host in ("0.0.0.0", "::"):  # noqa: S104 - set by the user
            return address._replace(host="0.0.0.0")  # noqa: S104 - grpcio binds either wildcard for IPv4 and IPv6
        move = address.host == "127.0.0.1" and self._host != "localhost"  # which is both
        return address._replace(host=self._host) if move else address

    def grpc_credentials(self) -> Any:
        """Return credentials of grpcio for one port; it calls `changed` in each handshake."""
        import grpc

        files = ReloadingTls(self._files, ["h2"])

        def changed() -> Any | None:
            """Return the certificate if it has changed; None keeps the one before, also while it cannot be used."""
            try:
                return self._grpc_certificate() if files.reload() else None
            except (UnusableFiles, OSError):
                return None

        return grpc.dynamic_ssl_server_credentials(self._grpc_certificate(), changed, bool(self._files.client_ca))

    def _grpc_certificate(self) -> Any:
        import grpc

        files = self._files
        certificate = Path(files.certificate).read_bytes()
        key = Path(files.key).read_bytes() if files.key else certificate
        authority = Path(files.client_ca).read_bytes() if files.client_ca else None
        return grpc.ssl_server_certificate_configuration([(key, certificate)], authority)
