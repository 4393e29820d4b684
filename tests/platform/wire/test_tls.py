"""Certificates are loaded again when they change; files that cannot be used leave the old ones in force."""

import socket
import ssl
import threading
from pathlib import Path

import pytest
from tests.certificates import Authority

from pilotlight.wire.tls import ReloadingTls, TlsFiles, UnusableFiles


def handshake(tls: ReloadingTls, client: ssl.SSLContext) -> int:
    """Connect a client to a server of the listeners' context; return the serial number of the server's certificate."""
    ours, theirs = socket.socketpair()

    def serve() -> None:
        try:
            with tls.context.wrap_socket(theirs, server_side=True) as connection:
                connection.sendall(b"x")
        except OSError:
            theirs.close()

    server = threading.Thread(target=serve)
    server.start()
    try:
        ours.settimeout(10)
        with client.wrap_socket(ours, server_hostname="localhost") as connection:
            assert connection.recv(1) == b"x"  # with TLS 1.3 a client's certificate is judged after the handshake
            certificate = connection.getpeercert()
            assert certificate is not None
            return int(str(certificate["serialNumber"]), 16)
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


def test_an_authority_that_is_none_is_named(tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).issue()
    (tmp_path / "empty").touch()
    with pytest.raises(UnusableFiles, match="empty: no certificates of an authority"):
        ReloadingTls(TlsFiles(str(certificate), str(key), str(tmp_path / "empty")), ["h2"])
