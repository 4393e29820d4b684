"""From SIGTERM to exit: whatever arrived is answered, within a bound."""

import signal
import socket
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

from tests.e2e.lifecycle.models import HELD, body, write_signed
from tests.eventually import eventually
from tests.serving import RunningServer, read_answer, rendered

from pilotlight_predictor.frontends.http.server import NEW_CONNECTION_S

Serve = Callable[..., RunningServer]
FINALISED = """

class Model:
    def execute(self, inputs):
        return predict(inputs["x"])

    def finalize(self):
        (SIGNS / "bye").touch()
"""


def send(server: RunningServer, value: float, *, full: bool = False) -> socket.socket:
    """A connection on which an inference was sent."""
    connection = server.connect(60)
    connection.sendall(rendered("POST", "/v2/models/m/infer", body(value), None, server.address, chunked=full))
    return connection


def stopping(server: RunningServer, number: int = signal.SIGTERM) -> None:
    server.process.send_signal(number)
    server.wait_for_event("stopping")


def test_requests_in_flight_are_answered_running_and_waiting_in_both_frontends(tmp_path: Path, serve: Serve) -> None:
    server = serve(write_signed(tmp_path, HELD))
    asked = {value: send(server, value, full=value % 2 == 0) for value in range(1, 7)}
    eventually(lambda: list(tmp_path.glob("began *")), "the first to run")
    server.wait_until(lambda: server.get("/status").json()["in_flight"] == 6, "holding six")
    stopping(server)
    assert server.process.poll() is None
    (tmp_path / "go").touch()
    for value, connection in asked.items():
        answer = read_answer(connection)
        assert answer.json()["outputs"][0]["data"] == [2 * value]
        assert answer.headers["connection"].lower() == "close"
        connection.close()
    assert server.process.wait(60) == 0
    assert server.wait_for_event("stopped")["finished"] is True


def test_what_arrives_on_open_connections_during_the_drain_is_answered_too(tmp_path: Path, serve: Serve) -> None:
    server = serve(write_signed(tmp_path, HELD))
    running, kept = send(server, 1), server.connect(60)
    health = rendered("GET", "/v2/health/ready", b"", None, server.address)
    kept.sendall(health)
    assert read_answer(kept, "GET").status == 200
    eventually(lambda: list(tmp_path.glob("began *")), "the first to run")
    stopping(server)
    kept.sendall(rendered("POST", "/v2/models/m/infer", body(3), None, server.address))
    (tmp_path / "go").touch()
    for connection, value in ((running, 2), (kept, 6)):
        answer = read_answer(connection)
        assert answer.json()["outputs"][0]["data"] == [value]
        assert answer.headers["connection"].lower() == "close"
        connection.close()
    assert server.process.wait(60) == 0


def test_during_the_drain_delay_it_is_not_ready_but_takes_new_connections(tmp_path: Path, serve: Serve) -> None:
    (tmp_path / "go").touch()
    server = serve(write_signed(tmp_path, HELD), "--drain-delay", "60")
    stopping(server)
    ready = server.get("/v2/health/ready")
    assert (ready.status, ready.json()["state"]) == (503, "stopping")
    assert server.get("/v2/health/live").status == 200
    for full in (False, True):
        answer = server.infer("m", body(4), full=full)
        assert (answer.status, answer.headers["connection"].lower()) == (200, "close")
    server.process.send_signal(signal.SIGTERM)
    server.process.wait(60)


def test_an_idle_server_has_no_drain_delay_whatever_its_health_checks(tmp_path: Path, serve: Serve) -> None:
    (tmp_path / "go").touch()
    server = serve(write_signed(tmp_path, HELD), "--drain-delay", "0.2")
    assert server.infer("m", body(4)).status == 200
    begun = time.monotonic()
    server.wait_until(lambda: server.get("/v2/health/ready").status == 200 and time.monotonic() > begun + 1, "idle")
    stopping(server)
    assert server.wait_for_event("stopping")["drain_delay_s"] == 0
    assert server.process.wait(60) == 0


def test_the_exit_timeout_bounds_the_wait_for_a_request_that_does_not_end(tmp_path: Path, serve: Serve) -> None:
    server = serve(write_signed(tmp_path, HELD), "--exit-timeout-secs", "0.3")
    connection = send(server, 1)
    eventually(lambda: list(tmp_path.glob("began *")), "it to run")
    server.process.terminate()
    assert server.process.wait(60) == 0
    begun, ended = server.wait_for_event("stopping"), server.wait_for_event("stopped")
    assert ended["finished"] is False
    assert datetime.fromisoformat(ended["ts"]) - datetime.fromisoformat(begun["ts"]) < timedelta(seconds=15)  # of 30
    connection.close()


def test_a_second_signal_ends_it_at_once(tmp_path: Path, serve: Serve) -> None:
    server = serve(write_signed(tmp_path, HELD), "--exit-timeout-secs", "600", "--drain-delay", "600")
    connection = send(server, 1)
    eventually(lambda: list(tmp_path.glob("began *")), "it to run")
    stopping(server, signal.SIGINT)
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(60) == 1
    connection.close()


def test_an_idle_server_is_gone_at_once(tmp_path: Path, serve: Serve) -> None:
    server = serve(write_signed(tmp_path, HELD), "--exit-timeout-secs", "600")
    kept = server.connect()
    kept.sendall(rendered("GET", "/v2/health/ready", b"", None, server.address))
    assert read_answer(kept, "GET").status == 200
    server.process.terminate()
    assert server.process.wait(60) == 0
    assert kept.recv(1) == b""
    kept.close()


def test_under_a_hail_of_connections_whoever_was_accepted_is_answered(tmp_path: Path, serve: Serve) -> None:
    (tmp_path / "go").touch()
    server = serve(write_signed(tmp_path, HELD))
    answered, lost = [0] * 6, []
    raw = rendered("POST", "/v2/models/m/infer", body(1), None, server.address)

    def client(number: int) -> None:
        while True:
            began = time.monotonic()
            try:
                connection = server.connect(30)
            except ConnectionError:  # nobody listens any more: the client knows and goes elsewhere
                return
            with connection:
                late = False
                try:
                    connection.sendall(raw)
                    late = (
                        time.monotonic() - began > NEW_CONNECTION_S / 2
                    )  # a busy machine; nobody waits longer for a request
                    answered[number] += read_answer(connection).status == 200
                except OSError as error:
                    if not late:
                        lost.append(error)

    clients = [threading.Thread(target=client, args=(number,)) for number in range(len(answered))]
    for thread in clients:
        thread.start()
    eventually(lambda: min(answered) >= 5, "everybody to be answered a few times")
    server.process.terminate()
    assert server.process.wait(60) == 0
    for thread in clients:
        thread.join()
    assert lost == []


def test_user_code_is_finalised_before_the_process_goes(tmp_path: Path, serve: Serve) -> None:
    source = HELD + FINALISED
    (tmp_path / "go").touch()
    server = serve(write_signed(tmp_path, source))
    assert server.infer("m", body(2)).status == 200
    server.process.terminate()
    assert server.process.wait(60) == 0
    assert (tmp_path / "bye").exists()
