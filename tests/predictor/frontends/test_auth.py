"""Identity of callers: the rules of the service in a file, and who is a local user."""

import ctypes
import hashlib
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from pilotlight.wire.access_file import encode
from pilotlight.wire.service_access import Access as ServiceAccess
from pilotlight.wire.service_access import AccessRules, Rate
from pilotlight_predictor.config import Limits, Settings
from pilotlight_predictor.errors import Forbidden, LoadFailed, PredictorError, RateLimited, Unauthenticated
from pilotlight_predictor.frontends.admission import Admission
from pilotlight_predictor.frontends.auth import Access, Action
from pilotlight_predictor.frontends.peer import Peer, local_owner

TOKEN = hashlib.sha256(b"secret").hexdigest()
GOOD = {"authorization": "Bearer secret"}
LOCAL = {"host": "localhost:8080"}


def admission(rules: AccessRules | None, folder: Path, **server: object) -> Admission:
    if rules is not None:
        (folder / "access.json").write_text(encode(rules))
        server["access_file"] = str(folder / "access.json")
    settings = Settings().server
    settings = type(settings)(**{**settings.__dict__, **server})
    return Admission(Access(settings), Limits(1, 0.0, None, None), 1)


def status(gate: Admission, action: Action, headers: Mapping[str, str], peer: str = "192.0.2.1") -> int:
    try:
        gate.admit(headers, peer, action)
    except PredictorError as error:
        return error.status
    return 200


def test_the_rules_of_the_service_close_everything_but_health_and_metrics(tmp_path: Path) -> None:
    gate = admission(AccessRules(ServiceAccess((TOKEN,))), tmp_path)
    assert [status(gate, action, {}) for action in Action] == [200, 200, 401, 401, 401]
    assert [status(gate, action, GOOD) for action in Action] == [200, 200, 200, 200, 403]
    assert [status(gate, action, {"authorization": "Bearer other"}) for action in Action] == [200, 200, 401, 401, 401]
    assert gate.checks_every_request(Action.INFER)


def test_a_rotated_token_needs_no_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, now = admission(AccessRules(ServiceAccess((TOKEN,))), tmp_path), 1e9
    monkeypatch.setattr("pilotlight_predictor.frontends.auth.monotonic", lambda: now)
    assert status(gate, Action.INFER, GOOD) == 200
    other = AccessRules(ServiceAccess((hashlib.sha256(b"other").hexdigest(),)))
    (tmp_path / "access.json").write_text(encode(other) + " ")
    now += 2
    assert status(gate, Action.INFER, GOOD) == 401
    assert status(gate, Action.INFER, {"authorization": "Bearer other"}) == 200


def test_a_rate_alone_asks_for_no_token_and_counts_by_address(tmp_path: Path) -> None:
    gate = admission(AccessRules(rate=Rate(2, 3600.0)), tmp_path)
    assert [status(gate, Action.INFER, {}) for _ in range(3)] == [200, 200, 429]
    assert status(gate, Action.INFER, {}, "192.0.2.2") == 200
    assert status(gate, Action.METRICS, {}) == status(gate, Action.HEALTH, {}) == 200
    with pytest.raises(RateLimited, match="this service allows each client 2 requests in 3600 s") as refused:
        gate.admit({}, "192.0.2.1", Action.READ)
    assert refused.value.retry_after is not None


def test_behind_a_proxy_clients_are_told_apart_by_their_address(tmp_path: Path) -> None:
    rules = AccessRules(rate=Rate(1, 3600.0))
    gate = admission(rules, tmp_path, behind_proxy=True, trusted_proxies=("10.0.0.0/8",))
    first, second = ({"x-forwarded-for": f"{address}, 10.0.0.9"} for address in ("192.0.2.1", "192.0.2.2"))
    assert [status(gate, Action.INFER, each, "10.0.0.1") for each in (first, first, second)] == [200, 429, 200]


def test_the_tokens_of_the_server_pass_beside_the_rules(tmp_path: Path) -> None:
    for name in ("api", "admin"):
        (tmp_path / name).write_text(name)
    files = {"api_token_file": str(tmp_path / "api"), "admin_token_file": str(tmp_path / "admin")}
    gate = admission(AccessRules(ServiceAccess((TOKEN,))), tmp_path, **files)
    assert status(gate, Action.INFER, {"authorization": "Bearer api"}) == 200
    assert status(gate, Action.ADMIN, {"authorization": "Bearer admin"}) == 200
    assert status(gate, Action.INFER, GOOD) == 200
    assert status(gate, Action.METRICS, {}) == 401


@pytest.mark.parametrize(("content", "message"), [(None, "must be a readable file"), ("{}", "has no rule, must have")])
def test_a_server_does_not_start_with_rules_that_it_cannot_read(
    tmp_path: Path, content: str | None, message: str
) -> None:
    path = tmp_path / "rules"
    if content is not None:
        path.write_text(content)
    settings = Settings().server
    with pytest.raises(LoadFailed, match=message):
        Access(type(settings)(**{**settings.__dict__, "access_file": str(path)}))


def test_only_who_may_read_sees_reasons(tmp_path: Path) -> None:
    gate = admission(AccessRules(ServiceAccess((TOKEN,))), tmp_path)
    assert gate.may_read(GOOD, "192.0.2.1")
    assert not gate.may_read({}, "127.0.0.1")
    assert admission(None, tmp_path).may_read({}, "192.0.2.1"), "a server without tokens is open"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"host": "localhost"}, 200), ({"host": "[::1]:80"}, 200), ({"host": "127.0.0.1:8080"}, 200),
        ({"host": "localhost:evil.com"}, 403), ({"host": "localhost:80:evil.com"}, 403), ({"host": "localhost:"}, 403),
        ({"host": "localhost:²"}, 403),
        ({**LOCAL, "sec-fetch-site": "none"}, 200), ({**LOCAL, "sec-fetch-site": "same-origin"}, 200),
        ({**LOCAL, "sec-fetch-site": "cross-site"}, 403), ({**LOCAL, "sec-fetch-site": "same-site"}, 403),
    ],
)  # fmt: skip
def test_web_pages_and_foreign_hosts_are_no_local_user(tmp_path: Path, headers: dict[str, str], expected: int) -> None:
    assert status(admission(None, tmp_path), Action.ADMIN, headers, "127.0.0.1") == expected


CONNECT = (
    "import os, socket, sys; 'localhost'.encode('idna'); os.setuid(int(sys.argv[3]));"
    "socket.create_connection((sys.argv[1], int(sys.argv[2]))).recv(1)"
)


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("user", [None, 65534], ids=["same user", "another user"])
def test_an_admin_on_loopback_is_of_the_server_s_user(tmp_path: Path, family: int, user: int | None) -> None:
    if user is not None and os.geteuid() != 0:
        pytest.skip("only root can act as another user")
    address = "127.0.0.1" if family == socket.AF_INET else "::1"
    try:
        listener = socket.create_server((address, 0), family=family)
    except OSError:
        pytest.skip(f"{address} is not here")
    listener.settimeout(60)
    owner = os.geteuid() if user is None else user
    command = [sys.executable, "-S", "-c", CONNECT, address, str(listener.getsockname()[1]), str(owner)]
    with listener, subprocess.Popen(command) as client:
        connection, (host, port, *_) = listener.accept()
        with connection:
            peer = Peer(host)
            peer.port, peer.server = port, connection.getsockname()[:2]
            assert local_owner(peer) == owner
            assert status(admission(None, tmp_path), Action.ADMIN, LOCAL, peer) == (200 if user is None else 403)
            assert status(admission(None, tmp_path), Action.INFER, LOCAL, peer) == 200
        assert client.wait(60) == 0
    assert local_owner(peer) == -1, "who has closed the connection cannot be known"
    assert status(admission(None, tmp_path), Action.ADMIN, LOCAL, peer) == 403


def test_a_connection_of_the_same_port_to_another_server_says_nothing_about_its_owner() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, socket.create_connection(other.getsockname()) as own:
        peer = Peer("127.0.0.1")
        peer.port, peer.server = own.getsockname()[1], ("127.0.0.1", 9)
        assert local_owner(peer) == -1


@pytest.mark.parametrize("namespace", [False, True], ids=["same namespace", "sandbox"])
@pytest.mark.skipif(sys.platform != "linux", reason="needs user namespaces")
def test_a_sandbox_with_the_uid_of_the_server_is_no_admin(namespace: bool) -> None:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            libc = ctypes.CDLL(None)
            if os.geteuid() == 0:
                os.setresuid(65534, 65534, 65534)
                libc.prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: a change of the uid hides the descriptors
            with socket.create_server(("127.0.0.1", 0)) as listener:
                if os.fork() == 0:
                    if namespace and libc.unshare(0x10000000) != 0:  # CLONE_NEWUSER
                        os._exit(1)
                    socket.create_connection(listener.getsockname()).recv(1)
                    os._exit(0)
                listener.settimeout(10)
                connection, (host, port) = listener.accept()
            peer = Peer(host)
            peer.port, peer.server = port, connection.getsockname()
            code = 0 if local_owner(peer) == (-1 if namespace else os.geteuid()) else 2
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status == 1 and namespace:
        pytest.skip("no user namespaces here")
    assert status == 0


def test_where_the_system_does_not_show_owners_loopback_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilotlight_predictor.frontends.peer.TABLES", (str(tmp_path / "none"),))
    peer = Peer("127.0.0.1")
    peer.port, peer.server = 9, ("127.0.0.1", 8)
    assert local_owner(peer) is None
    assert status(admission(None, tmp_path), Action.ADMIN, LOCAL, peer) == 200


def test_errors_have_the_class_of_their_status(tmp_path: Path) -> None:
    gate = admission(AccessRules(ServiceAccess((TOKEN,))), tmp_path)
    with pytest.raises(Unauthenticated, match="this service needs a token"):
        gate.admit({}, "192.0.2.1", Action.INFER)
    with pytest.raises(Forbidden, match="requires the admin token"):
        gate.admit(GOOD, "192.0.2.1", Action.ADMIN)
