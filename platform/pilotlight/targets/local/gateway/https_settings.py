"""Settings of the gateway's HTTPS listener, as flags of `platformctl up`, the control process and the gateway."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pilotlight.errors import UsageError

FLAGS: Final = ("--https", "--tls-cert", "--tls-key", "--tls-client-ca")


@dataclass(frozen=True, slots=True)
class HttpsSettings:
    """`address` is host:port of the HTTPS listener; services' gRPC ports speak TLS at its host."""

    address: str
    tls_cert: str
    tls_key: str = ""
    tls_client_ca: str = ""

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0].strip("[]")

    def flags(self) -> tuple[str, ...]:
        return ("--https", self.address, *self._files())

    def gateway_flags(self) -> tuple[str, ...]:
        return ("--tls-host", self.host, *self._files())

    def _files(self) -> list[str]:
        files = {"--tls-cert": self.tls_cert, "--tls-key": self.tls_key, "--tls-client-ca": self.tls_client_ca}
        return [word for flag, path in files.items() if path for word in (flag, os.path.abspath(path))]


def https_of(options: Mapping[str, str]) -> HttpsSettings | None:
    """Return the settings among the flags of a start. Raise UsageError as `https_settings`."""
    return https_settings(*(options.get(flag, "") for flag in FLAGS))


def https_settings(address: str, tls_cert: str, tls_key: str, tls_client_ca: str) -> HttpsSettings | None:
    """Return the settings; None without an address. Raise UsageError if something is missing."""
    if not address:
        if tls_cert or tls_key or tls_client_ca:
            raise UsageError("--https is missing: set an address such as 0.0.0.0:8443")
        return None
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise UsageError(f"--https = {address}, must be host:port such as 0.0.0.0:8443")
    if not tls_cert:
        raise UsageError("--tls-cert is missing: HTTPS needs a certificate")
    return HttpsSettings(address, tls_cert, tls_key, tls_client_ca)
