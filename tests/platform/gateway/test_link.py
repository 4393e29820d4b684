"""The link from the control process to a real gateway: whoever of the two dies, sockets and tables live on."""

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

import pytest
from tests.eventually import eventually_async
from tests.platform.gateway.linked import (
    DEADLINE_S,
    Linked,
    ask,
    in_loop,
    linked,
    new_link,
    read_reply,
    replica,
    route,
)
from tests.ports import free_port

from pilotlight.errors import PlatformError
from pilotlight.gateway import fd_channel
from pilotlight.gateway.control_link import Hello, Unreachable, Wake
from pilotlight.gateway.listeners import CannotListen
from pilotlight.gateway.routing_table import Replica, Table
from pilotlight.targets.local.control_process_launcher import leftovers
from pilotlight.targets.local.gateway import gateway_link

# A control process that publishes one table and then only lives.
CONTROL = """
import asyncio, sys
from pathlib import Path
from tests.platform.gateway.linked import new_link, route
from pilotlight.gateway.routing_table import Replica

async def main(folder, port):
    made = new_link(Path(folder))
    await made.link.start(["127.0.0.1:0/http"])
    await made.publish(route(Replica("r1", int(port))))
    print(made.link.addresses[0], made.link.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


async def alive(made: Linked, path: str = "/iris/v2") -> bool:
    return (await ask(made.port, path)).status == 200


@in_loop
async def test_both_loopback_addresses_are_served(tmp_path: Path) -> None:
    async with linked(tmp_path) as made, replica() as one:
        await made.publish(route(one.config))
        for host in ["127.0.0.1", *(["::1"] if len(made.link.addresses) > 1 else [])]:
            reply = await ask(made.port, "/iris/v2/models?x=1", host=host)
            assert reply.json()["line"] == "GET /v2/models?x=1 HTTP/1.1"


@in_loop
async def test_nobody_is_answered_before_the_first_table(tmp_path: Path) -> None:
    async with linked(tmp_path) as made, replica() as one:
        asked = asyncio.create_task(ask(made.port, "/iris/"))
        other = new_link(tmp_path / "other")  # a second gateway's whole start: long enough for a wrong answer
        await other.link.start(["127.0.0.1:0/http"])
        await other.link.close(stop_gateway=True, drain_s=0.0)
        assert not asked.done()
        await made.publish(route(one.config))
        assert (await asked).status == 200


@pytest.mark.parametrize("times", [3, pytest.param(100, marks=pytest.mark.long)])
@in_loop
async def test_connections_wait_while_a_killed_gateway_is_replaced(tmp_path: Path, times: int) -> None:
    async with linked(tmp_path) as made, replica() as one:
        await made.publish(route(one.config))
        for _ in range(times):
            killed = made.link.pid
            os.kill(killed, signal.SIGKILL)
            replies = await asyncio.gather(*(ask(made.port, "/iris/") for _ in range(20)), return_exceptions=True)
            # One that the dying process had accepted is lost with it; all that came later are answered.
            assert sum(not isinstance(reply, BaseException) and reply.status == 200 for reply in replies) >= 19
            await eventually_async(lambda killed=killed: made.link.pid != killed, "a successor")


@in_loop
async def test_a_table_is_applied_although_the_gateway_dies_meanwhile(tmp_path: Path) -> None:
    async with linked(tmp_path) as made, replica() as one:
        await made.publish()
        os.kill(made.link.pid, signal.SIGKILL)
        first, second = await asyncio.gather(made.publish(), made.publish(route(one.config)))
        assert second.generation == 3
        assert first.generation in (2, 3)
        assert await alive(made)


@in_loop
async def test_of_tables_that_come_faster_than_they_are_applied_only_the_last_is_sent(tmp_path: Path) -> None:
    async with linked(tmp_path) as made:
        applied = await asyncio.gather(*(made.publish() for _ in range(50)))
        assert {each.generation for each in applied} == {1, 50}


@in_loop
async def test_traffic_flows_while_no_control_process_lives_and_the_next_one_takes_over(tmp_path: Path) -> None:
    async with replica() as one:
        control = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CONTROL, str(tmp_path), str(one.port), stdout=asyncio.subprocess.PIPE
        )
        assert control.stdout is not None
        address, pid = (await asyncio.wait_for(control.stdout.readline(), DEADLINE_S)).decode().split()
        control.kill()
        await control.wait()
        port = int(address.rpartition(":")[2].partition("/")[0])
        assert (await ask(port, "/iris/")).status == 200
        async with linked(tmp_path, [address]) as made:
            assert made.link.pid == int(pid)
            assert made.link.addresses[0] == address
            assert (await ask(port, "/iris/")).status == 200  # the old table holds until there is another
            await made.publish(route(one.config))
            os.kill(made.link.pid, signal.SIGKILL)
            assert (await ask(port, "/iris/")).status == 200  # the borrowed sockets are held here too
            assert made.link.pid != int(pid)


@in_loop
async def test_a_gateway_of_another_version_makes_way_and_finishes_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with replica(ready=False) as one:
        old = new_link(tmp_path)
        await old.link.start(["127.0.0.1:0/http"])
        await old.publish(route(one.config))
        pid, address = old.link.pid, old.link.addresses[0]
        slow = asyncio.create_task(ask(old.port, "/iris/slow"))
        await eventually_async(lambda: one.asked, "the slow request")
        await old.link.close(stop_gateway=False, drain_s=0.0)
        monkeypatch.setattr(gateway_link, "build_id", lambda: "0.0.1")
        async with linked(tmp_path, [address]) as made:
            assert made.link.pid != pid
            assert made.link.addresses[0] == address
            await made.publish(route(one.config))
            one.open.set()
            assert (await slow).status == 200
            assert await alive(made)


@in_loop
async def test_a_newer_control_process_replaces_the_older_one(tmp_path: Path) -> None:
    async with linked(tmp_path) as made:
        await made.publish()
        made.link._closing = True  # the older one, which in earnest has died, does not fight back
        async with linked(tmp_path, [made.link.addresses[0]]) as newer:
            assert newer.link.pid == made.link.pid
            await eventually_async(lambda: made.link._gateway is None, "told")
            assert (await newer.publish()).generation == 1


@in_loop
async def test_a_port_of_a_services_own_comes_and_goes_with_the_table(tmp_path: Path) -> None:
    own = free_port()
    async with linked(tmp_path) as made, replica() as one:
        applied = await made.publish(route(one.config, port=own))
        assert applied.failed == ()
        assert (await ask(own, "/v2/health")).json()["line"] == "GET /v2/health HTTP/1.1"
        os.kill(made.link.pid, signal.SIGKILL)
        assert (await ask(own, "/v2/health")).status == 200
        await made.publish(route(one.config))
        with pytest.raises(ConnectionRefusedError):
            await ask(own, "/")


@in_loop
async def test_a_taken_port_is_told_and_had_once_it_is_free(tmp_path: Path) -> None:
    async with linked(tmp_path) as made, replica() as one:
        with socket.create_server(("127.0.0.1", own := free_port())):  # nobody else gets it once it is free again
            (failed,) = (await made.publish(route(one.config, port=own))).failed
            assert failed.startswith(f"127.0.0.1:{own}/http: port {own} on 127.0.0.1 is in use by ")
            (failed,) = await made.link.listen([f"127.0.0.1:{own}/http"])
            assert f"(pid {os.getpid()})" in failed
        assert (await made.publish(route(one.config, port=own))).failed == ()
        assert (await ask(own, "/")).status == 200


@in_loop
async def test_a_port_bound_ahead_waits_for_the_table_that_names_it(tmp_path: Path) -> None:
    own = free_port()
    async with linked(tmp_path) as made, replica() as one:
        await made.publish()
        assert await made.link.listen([f"127.0.0.1:{own}/http"]) == ()
        assert (await ask(own, "/")).status == 404
        await made.publish(route(name="another"))
        await made.publish(route(one.config, port=own))
        assert (await ask(own, "/")).status == 200


@in_loop
async def test_a_taken_shared_port_is_an_error_that_says_what_to_change(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        made = new_link(tmp_path)
        with pytest.raises(CannotListen, match=r"is in use by .* choose another port with PILOTLIGHT_GATEWAY_PORT"):
            await made.link.start([f"127.0.0.1:{taken.getsockname()[1]}/http"])
        await made.link.close(stop_gateway=True, drain_s=0.0)


@in_loop
async def test_a_gateway_that_does_not_come_up_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    made = new_link(tmp_path, [sys.executable, "-c", "import sys; sys.exit('no such plane')"])
    with pytest.raises(PlatformError, match="it exited with status 1; end of its log:\nno such plane"):
        await made.link.start(["127.0.0.1:0/http"])
    await made.link.close(stop_gateway=True, drain_s=0.0)


@in_loop
async def test_the_control_process_hears_who_waits_what_happened_and_who_cannot_be_reached(tmp_path: Path) -> None:
    async with linked(tmp_path) as made, replica() as one:
        await made.publish(route())
        held = asyncio.create_task(ask(made.port, "/iris/"))
        wake = await made.hears(Wake)
        assert (wake.namespace, wake.name, wake.revision) == ("default", "iris", "iris-1")
        await made.publish(route(one.config))
        reply = await held
        assert int(reply.headers["x-pilotlight-cold-start"]) >= 0
        await made.counted(1)
        await made.publish(route(Replica("gone", free_port())))
        waits = asyncio.create_task(ask(made.port, "/iris/"))
        assert (await made.hears(Unreachable)).replica == "gone"
        await made.publish(route(one.config))
        assert (await waits).status == 200


@in_loop
async def test_an_idle_connection_survives_no_restart_but_its_next_one_does(tmp_path: Path) -> None:
    async with linked(tmp_path) as made, replica() as one:
        await made.publish(route(one.config))
        reader, writer = await asyncio.open_connection("127.0.0.1", made.port)
        writer.write(b"GET /iris/ HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await read_reply(reader)).status == 200
        os.kill(made.link.pid, signal.SIGTERM)
        assert await reader.read() == b""
        writer.close()
        assert await alive(made)


@in_loop
async def test_a_log_that_cannot_be_written_keeps_no_gateway_from_starting(tmp_path: Path) -> None:
    made = new_link(tmp_path)
    made.home.logs.rmdir()
    made.home.logs.write_text("a file where the folder should be")
    await made.link.start(["127.0.0.1:0/http"])
    try:
        assert (await made.publish()).generation == 1
    finally:
        await made.link.close(stop_gateway=True, drain_s=0.0)


@in_loop
async def test_a_listener_that_fails_on_a_word_hears_the_next(tmp_path: Path) -> None:
    async with linked(tmp_path) as made:
        failed: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failed.append(context["message"]))
        made.link._on_message = lambda message: {}[message]  # type: ignore[index]
        os.kill(made.link.pid, signal.SIGKILL)
        assert (await made.publish()).generation == 1
        assert failed


@in_loop
async def test_a_dropped_connection_is_made_again_to_the_same_gateway(tmp_path: Path) -> None:
    async with linked(tmp_path) as made, replica() as one:
        await made.publish(route(one.config))
        pid, said = made.link.pid, len(made.words)
        thief = fd_channel.connect(made.home.gateway_socket)  # whoever connects last is listened to
        assert thief is not None
        hello = await made.hears(Hello, said)
        thief.close()
        assert (hello.pid, hello.generation) == (pid, 1)
        assert (await made.link.publish(Table(9, (route(one.config),)))).generation == 9


@in_loop
async def test_asking_whether_a_gateway_lives_disturbs_nobody(tmp_path: Path) -> None:
    async with linked(tmp_path) as made:
        await made.publish()
        channel = made.link._gateway
        assert leftovers(made.home)
        for _ in range(3):
            await made.publish()
        assert made.link._gateway is channel
        assert sum(isinstance(word, Hello) for word in made.words) == 1
    assert not leftovers(made.home)
