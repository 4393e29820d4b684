"""Sockets in folders: whose they are, how deep they may lie, and what those meet who come at once."""

import os
import socket
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from pilotlight.gateway import fd_channel
from pilotlight.wire.unix_socket import connect, listen, peer_pid, split_url, unix_address


def test_the_socket_is_for_its_owner_alone_and_may_lie_deep(tmp_path: Path) -> None:
    folder = tmp_path / ("deep" * 20) / ("deeper" * 20)
    folder.mkdir(parents=True)
    path = folder / "gateway.sock"
    path.write_text("left behind")
    assert fd_channel.connect(path) is None
    with listen(path, 8) as listener, fd_channel.connect(path) or socket.socket() as client:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        listener.accept()[0].close()
        assert client.recv(1) == b""
    assert os.listdir(folder) == ["gateway.sock"]


def test_whoever_sees_a_socket_can_connect_to_it(tmp_path: Path) -> None:
    looking = Event()

    def come_when_seen(path: Path) -> None:
        looking.set()
        while not path.exists():
            pass
        with socket.socket(socket.AF_UNIX) as client, unix_address(path) as address:
            client.connect(address)

    with ThreadPoolExecutor(1) as visitor:
        for number in range(200):
            looking.clear()
            visit = visitor.submit(come_when_seen, tmp_path / f"{number}.sock")
            looking.wait()
            with listen(tmp_path / f"{number}.sock", 8):
                visit.result(timeout=20)


def test_a_place_that_cannot_be_had_leaves_nothing_open(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        listen(tmp_path / "missing" / "gateway.sock", 8)


def test_each_end_of_a_connection_knows_whose_the_other_is(tmp_path: Path) -> None:
    with (
        listen(tmp_path / "a.sock", 8) as listener,
        fd_channel.connect(tmp_path / "a.sock") or socket.socket() as client,
    ):
        served, _ = listener.accept()
        with served:
            assert (peer_pid(served), peer_pid(client)) == (os.getpid(), os.getpid())


def test_a_link_in_place_of_a_socket_is_not_followed(tmp_path: Path) -> None:
    with listen(tmp_path / "8080", 8):
        connect(*split_url(f"unix:{tmp_path}/8080")).close()
        (tmp_path / "8081").symlink_to(tmp_path / "8080")
        with pytest.raises(ConnectionRefusedError):
            connect(*split_url(f"unix:{tmp_path}/8081"))
