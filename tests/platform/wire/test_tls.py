"""Certificates are loaded again when they change; files that cannot be used leave the old ones in force."""

import socket
import ssl
import threading
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tests.certificates import Authority

from pilotlight.wire.tls import ReloadingTls, TlsFiles, UnusableFiles, valid_until


def handshake(tls: ReloadingTls, client: ssl.SSLContext) -> int:
    """Connect a client to a server of the listeners' context; return the serial number of the server's certificate."""
    return connect(tls, client)[0]


def connect(
    tls: ReloadingTls, client: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> tuple[int, ssl.SSLSession | None]:
    """As `handshake`; return the session too, by which the client may connect again."""
    ours, theirs = socket.socketpair()

    def serve() -> None:
        try:
            with tls.context.wrap_socket(theirs, server_side=True) as connection:
                connection.sendall(b"x")
                connection.unwrap()  # else the session is forgotten
        except OSError:
            theirs.close()

    server = threading.Thread(target=serve)
    server.start()
    try:
        ours.settimeout(10)
        with client.wrap_socket(ours, server_hostname="localhost", session=session) as connection:
            assert connection.recv(1) == b"x"  # with TLS 1.3 a client's certificate is judged after the handshake
            certificate = connection.getpeercert()
            assert certificate is not None
            session = connection.session
            connection.unwrap()
            return int(str(certificate["serialNumber"]), 16), session
    finally:
        server.join()


def client_of(authority: Authority, *certificate: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.path))
    if certificate:
        context.load_cert_chain(*certificate)
    return context


def test_a_changed_certificate_is_used_by_the_next_handshake(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue()
    tls = ReloadingTls(TlsFiles(str(certificate), str(key)), ["http/1.1"])
    client = client_of(authority)
    first = handshake(tls, client)
    assert (tls.reload(), handshake(tls, client)) == (False, first)
    authority.issue()
    assert tls.reload()
    assert handshake(tls, client) != first


def test_files_that_cannot_be_used_leave_the_old_ones_in_force(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue()
    tls = ReloadingTls(TlsFiles(str(certificate), str(key)), ["http/1.1"])
    first = handshake(tls, client_of(authority))
    secret = key.read_bytes()
    key.write_text("half of it")
    with pytest.raises(UnusableFiles, match=r"localhost\.crt and .*localhost\.key: no certificate with its key"):
        tls.reload()
    key.unlink()
    with pytest.raises(UnusableFiles, match=r"localhost\.key: No such file"):
        tls.reload()
    assert handshake(tls, client_of(authority)) == first
    key.write_bytes(secret)
    assert tls.reload()


def test_only_clients_of_the_authority_connect_and_the_authority_can_change(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    certificate, key = authority.issue()
    trusted = tmp_path / "clients.crt"
    trusted.write_bytes(authority.path.read_bytes())
    tls = ReloadingTls(TlsFiles(str(certificate), str(key), str(trusted)), ["h2"])
    known, foreign = client_of(authority, *authority.issue("a")), client_of(authority, *other.issue("b"))
    assert handshake(tls, known)
    for refused in (client_of(authority), foreign):
        with pytest.raises(OSError, match=r"alert|closed|reset"):
            handshake(tls, refused)
    trusted.write_bytes(other.path.read_bytes())
    assert tls.reload()
    assert handshake(tls, foreign)
    with pytest.raises(OSError, match=r"alert|closed|reset"):
        handshake(tls, known)


def test_the_end_of_a_certificate_is_read_also_behind_its_key(tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).issue()
    expected = x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc
    assert valid_until(key.read_text() + certificate.read_text()) == expected
    with pytest.raises(UnusableFiles, match="no certificate"):
        valid_until(key.read_text())


@pytest.mark.parametrize("year", [2049, 2050])
def test_a_certificate_may_be_valid_beyond_2049(year: int) -> None:
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    end = datetime(year, 12, 31, 23, 59, 59, tzinfo=UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, datetime(2020, 1, 1, tzinfo=UTC), end)
    pem = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    assert valid_until(pem.decode()) == end


def test_an_authority_that_is_none_is_named(tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).issue()
    (tmp_path / "empty").touch()
    with pytest.raises(UnusableFiles, match="empty: no certificates of an authority"):
        ReloadingTls(TlsFiles(str(certificate), str(key), str(tmp_path / "empty")), ["h2"])


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_session_does_not_outlive_the_authority_of_its_client(tmp_path: Path, version: ssl.TLSVersion) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    certificate, key = authority.issue()
    trusted = tmp_path / "clients.crt"
    trusted.write_bytes(authority.path.read_bytes())
    tls = ReloadingTls(TlsFiles(str(certificate), str(key), str(trusted)), ["h2"])
    client = client_of(authority, *authority.issue("a"))
    client.maximum_version = version
    _, session = connect(tls, client)
    connect(tls, client, session)
    trusted.write_bytes(other.path.read_bytes() + authority.path.read_bytes())
    assert tls.reload()
    with pytest.raises(OSError) if version == ssl.TLSVersion.TLSv1_2 else nullcontext():
        connect(tls, client, session)
    assert handshake(tls, client), "the next handshake is a full one"
    trusted.write_bytes(other.path.read_bytes())
    assert tls.reload()
    with pytest.raises(OSError):
        connect(tls, client, session)
