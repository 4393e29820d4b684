"""TLS of listening sockets: certificate files that are loaded again when they change, and client certificates."""

import asyncio
import os
import re
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

INTERVAL_S: Final = 5.0


class UnusableFiles(ValueError):
    """A file that is missing or has the wrong content; the message names it."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. `key` may be in the certificate's file; with `client_ca` only clients that it has signed connect."""

    certificate: str
    key: str = ""
    client_ca: str = ""

    def stamps(self) -> tuple[tuple[int, int, int], ...]:
        """Return what changes when a file is replaced or written. Raise UnusableFiles if one is missing."""
        try:
            files = [os.stat(path) for path in (self.certificate, self.key, self.client_ca) if path]
        except OSError as error:
            raise UnusableFiles(f"{error.filename}: {error.strerror}") from None
        return tuple((each.st_ino, each.st_size, each.st_mtime_ns) for each in files)


class ReloadingTls:
    """Server side of TLS. `context` is that of the listeners; handshakes use the files as of the last `reload`."""

    def __init__(self, files: TlsFiles, protocols: Sequence[str]) -> None:
        """`protocols` are those of ALPN, the preferred one first. Raise UnusableFiles for files that cannot be used."""
        self.files = files
        self._protocols = list(protocols)
        self._stamps = files.stamps()
        self.context = self._current = self._load()
        self.context.sni_callback = self._use_current

    def _use_current(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> int | None:
        """Use the newest certificates; called in each handshake, with a name or without.

        A resumed session shows no certificate: it would outlive the authority that has signed it. The alert makes both
        sides forget the session, and the client's next handshake is a full one.
        """
        if self.files.client_ca and connection.session_reused and self._current is not self.context:
            return ssl.ALERT_DESCRIPTION_HANDSHAKE_FAILURE
        connection.context = self._current
        return None

    def reload(self) -> bool:
        """Load the files if they have changed; return whether. Raise UnusableFiles and keep the old ones if they cannot
        be used, which is tried again at the next call: they may be written one after the other."""
        stamps = self.files.stamps()
        if stamps == self._stamps:
            return False
        self._current = self._load()
        self._stamps = stamps
        return True

    async def reload_forever(self, report: Callable[[str], None], warn: Callable[[str], None]) -> None:
        """Look at the files every 5 s. `report` gets one sentence for each change, `warn` for each new problem."""
        problem = ""
        while True:
            await asyncio.sleep(INTERVAL_S)
            try:
                if self.reload():
                    report(f"{self.files.certificate} has changed: new connections use it")
                problem = ""
            except UnusableFiles as error:
                if str(error) != problem:
                    problem = str(error)
                    warn(f"the certificate stays as it was: {problem}")

    def _load(self) -> ssl.SSLContext:
        files = self.files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(self._protocols)
        try:
            context.load_cert_chain(files.certificate, files.key or None)
        except (OSError, ssl.SSLError) as error:
            pair = f"{files.certificate} and {files.key}" if files.key else f"{files.certificate}, without --tls-key"
            raise UnusableFiles(f"{pair}: no certificate with its key ({_reason(error)})") from None
        if files.client_ca:
            context.verify_mode = ssl.CERT_REQUIRED
            context.num_tickets, context.options = 0, context.options | ssl.OP_NO_TICKET  # TLS 1.2 keeps session ids
            try:
                context.load_verify_locations(files.client_ca)
            except (OSError, ssl.SSLError) as error:
                raise UnusableFiles(f"{files.client_ca}: no certificates of an authority ({_reason(error)})") from None
        return context


def valid_until(certificate: str) -> datetime:
    """Return the end of the first certificate of a PEM text. Raise UnusableFiles if there is none."""
    pem = re.search("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", certificate, re.DOTALL)
    # RFC 5280: Validity is a sequence of two times, UTCTime (tag 17) before 2050 and GeneralizedTime (18) from then on.
    times = rb"\x30[\x1e\x20\x22](?:\x17\x0d\d{12}|\x18\x0f\d{14})Z(?:\x17\x0d|\x18\x0f)(\d{12}|\d{14})Z"
    validity = re.search(times, ssl.PEM_cert_to_DER_cert(pem[0])) if pem else None
    if validity is None:
        raise UnusableFiles("no certificate")
    return datetime.strptime(f"20{validity[1].decode()}"[-14:] + "Z", "%Y%m%d%H%M%S%z")


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "not PEM").lower().replace("_", " ")
    return error.strerror or str(error)
