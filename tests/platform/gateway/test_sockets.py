"""The channel between control process and gateway: whole messages, with their descriptors, in order."""

import os
import socket
from pathlib import Path
from typing import Any

import pytest
from tests.eventually import eventually_async
from tests.platform.gateway.linked import in_loop

from pilotlight.errors import UsageError
from pilotlight.gateway import listeners
from pilotlight.gateway.control_link import ControlMessage, Listen, Publish, Stop
from pilotlight.gateway.fd_channel import Channel
from pilotlight.gateway.listeners import Address, CannotListen
from pilotlight.gateway.routing_table import Route, Table


class Ends:
    """Both ends of a channel that speaks Orders; `heard` is what arrived at the far one."""

    def __init__(self) -> None:
        near, far = socket.socketpair()
        self.heard: list[tuple[Any, list[socket.socket]]] = []
        self.lost: list[str] = []
        self.near: Channel[ControlMessage] = Channel(
            near, ControlMessage, lambda *_: None, lambda: self.lost.append("near")
        )
        self.far: Channel[ControlMessage] = Channel(
            far,
            ControlMessage,
            lambda message, came: self.heard.append((message, came)),
            lambda: self.lost.append("far"),
        )
        self.raw = near

    def close(self) -> None:
        self.near.close()
        self.far.close()
        for _, came in self.heard:
            for each in came:
                each.close()


@in_loop
async def test_sockets_arrive_with_their_message_however_many() -> None:
    ends = Ends()
    files = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(450)]
    for each in files:
        each.bind(("127.0.0.1", 0))
    names = tuple(f"127.0.0.1:{each.getsockname()[1]}/http" for each in files)
    ends.near.send(Stop(1.0))
    ends.near.send(Listen(held=names[:1]), files[:1])
    ends.near.send(Listen(held=names), files)
    ends.near.send(Stop(2.0))
    await eventually_async(lambda: len(ends.heard) == 4, "all four")
    message, came = ends.heard[2]
    assert message.held == names
    assert [f"127.0.0.1:{each.getsockname()[1]}/http" for each in came] == list(names)
    assert [len(came) for _, came in ends.heard] == [0, 1, 450, 0]
    assert not any(os.get_inheritable(each.fileno()) for each in came)
    ends.close()
    for each in files:
        each.close()


@in_loop
async def test_a_table_larger_than_any_buffer_arrives_whole() -> None:
    ends = Ends()
    table = Table(7, tuple(Route("default", f"service-{number:06}" + "x" * 100) for number in range(20_000)))
    ends.near.send(Publish(table))
    ends.near.send(Stop())
    await eventually_async(lambda: len(ends.heard) == 2, "both")
    assert ends.heard[0][0].table == table
    ends.close()


@in_loop
async def test_a_line_that_is_no_message_ends_the_channel_for_both() -> None:
    ends = Ends()
    ends.raw.send(b'{"type":"surprise"}\n')
    await eventually_async(lambda: "far" in ends.lost, "lost")
    await eventually_async(lambda: "near" in ends.lost, "lost")
    assert ends.lost == ["far", "near"]
    ends.near.send(Stop())  # nobody hears it, and nobody minds
    ends.close()


@in_loop
async def test_announced_sockets_that_do_not_come_end_the_channel() -> None:
    ends = Ends()
    ends.near.send(Listen(held=("127.0.0.1:1/http",)))
    await eventually_async(lambda: "far" in ends.lost, "lost")
    assert not ends.heard
    ends.close()


@pytest.mark.parametrize("text", ["8090", "127.0.0.1:99999/http", "127.0.0.1:80/ftp", "::1:80/http", "a b/http"])
def test_an_address_that_is_none_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match=r"listen = .* must be host:port/kind such as 127\.0\.0\.1:8090/http"):
        listeners.parse(text)


@pytest.mark.parametrize("text", ["127.0.0.1:8090/http", "[::1]:8090/http", "0.0.0.0:0/grpc"])
def test_an_address_reads_as_it_is_written(text: str) -> None:
    assert str(listeners.parse(text)) == text


def test_a_taken_port_names_port_holder_and_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotListen) as caught:
            listeners.bind(Address("127.0.0.1", port), "--gateway-port")
    holder = f"{Path('/proc/self/comm').read_text().strip()} (pid {os.getpid()})"
    assert str(caught.value) == (
        f"port {port} on 127.0.0.1 is in use by {holder}; stop it or choose another port with --gateway-port"
    )


def test_an_ipv6_equivalent_that_the_machine_lacks_is_not_bound() -> None:
    assert Address("127.0.0.1", 80).ipv6_equivalent == Address("::1", 80)
    assert Address("192.0.2.1", 80).ipv6_equivalent is None
    assert listeners.bind_ipv6(Address("2001:db8::1", 0)) is None
