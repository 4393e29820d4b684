"""A socket changes hands: whoever is not ready lets go first, and one that hears nothing holds nobody up."""

import time
from pathlib import Path

import pytest
from tests.conftest import Serve
from tests.predictor.workers.several import PID, write_pid
from tests.serving import START_S

from pilotlight_predictor.workers.supervisor_policy import available_sockets
from pilotlight_predictor.workers.worker_handle import (
    PATIENCE_S,
    ShareState,
    SocketShare,
    distribute_sockets,
    share_states,
)

Orders = list[tuple[int, list[int]]]


class Worker:
    def __init__(self, *, ready: bool = False, leaving: bool = False, gone: bool = False) -> None:
        self.orders: Orders = []
        self.share = SocketShare(lambda order, sockets: self.orders.append((order, sockets)))
        self.ready, self.leaving, self.gone = ready, leaving, gone

    def standing(self, ready: bool = False) -> ShareState:
        return ShareState(self.share, ready)


@pytest.fixture
def pair() -> tuple[Worker, Worker]:
    """The first says for both sockets that nobody is ready."""
    first, second = Worker(), Worker()
    assert not distribute_sockets(2, {0: first.standing(), 1: second.standing()}, 0.0)
    assert (first.orders, second.orders) == ([(1, [0, 1])], [(1, [])])
    first.share.confirm(1)
    second.share.confirm(1)
    return first, second


def test_one_that_is_ready_waits_until_the_other_has_let_go(pair: tuple[Worker, Worker]) -> None:
    first, second = pair
    now = {0: first.standing(), 1: second.standing(ready=True)}
    assert distribute_sockets(2, now, 10.0)
    assert (first.orders[1:], second.orders[1:]) == ([(2, [])], [])
    first.share.confirm(2)
    assert not distribute_sockets(2, now, 10.1)
    assert second.orders[1:] == [(2, [0, 1])]


def test_one_that_hears_nothing_holds_nobody_up(pair: tuple[Worker, Worker]) -> None:
    first, second = pair
    now = {0: first.standing(), 1: second.standing(ready=True)}
    assert distribute_sockets(2, now, 10.0)
    assert distribute_sockets(2, now, 10.0 + PATIENCE_S / 2)
    assert not distribute_sockets(2, now, 10.0 + PATIENCE_S)
    assert second.orders[-1][1] == [0, 1]


def test_who_is_ready_does_not_wait_when_all_stop(pair: tuple[Worker, Worker]) -> None:
    first, second = pair
    now = {0: first.standing(), 1: second.standing(ready=True)}
    assert distribute_sockets(2, now, 10.0)
    assert not distribute_sockets(2, now, 10.0, wait=False)
    assert (first.orders[-1][1], second.orders[-1][1]) == ([], [0, 1])


def test_what_one_that_is_ready_has_is_not_taken_away_for_one_that_is_late_to_let_go() -> None:
    """The first follows its first order only after it was thought to hear nothing."""
    first, second, third = Worker(), Worker(), Worker()
    now = {0: first.standing(), 1: second.standing(), 2: third.standing()}
    distribute_sockets(3, now, 0.0)
    now[1] = second.standing(ready=True)
    distribute_sockets(3, now, PATIENCE_S)
    assert second.orders[-1][1] == [0, 1, 2]
    first.share.confirm(1)
    now[2] = third.standing(ready=True)
    distribute_sockets(3, now, PATIENCE_S + 0.1)
    assert set(second.orders[-1][1]) >= {1}
    assert {*second.orders[-1][1], *third.orders[-1][1]} >= {0, 1}


def test_one_that_leaves_lets_go_where_another_is_ready_and_one_that_is_gone_is_not_asked() -> None:
    leaving, ready, gone = Worker(ready=True, leaving=True), Worker(ready=True), Worker(gone=True)
    assert share_states({0: leaving, 1: ready, 2: gone}) == {0: leaving.standing(), 1: ready.standing(ready=True)}


def test_one_that_leaves_keeps_what_it_has_while_nobody_else_is_ready() -> None:
    leaving, starting = Worker(ready=True, leaving=True), Worker()
    assert share_states({0: leaving, 1: starting}) == {1: starting.standing()}


def test_between_two_that_are_ready_nobody_waits(pair: tuple[Worker, Worker]) -> None:
    first, second = pair
    assert not distribute_sockets(2, {0: first.standing(ready=True), 1: second.standing(ready=True)}, 10.0)
    assert (first.orders[1:], second.orders[1:]) == ([(2, [0])], [(2, [1])])


def test_what_was_told_last_counts_as_held_until_it_is_done(pair: tuple[Worker, Worker]) -> None:
    first, _ = pair
    first.share.assign([], 10.0)
    first.share.assign([1], 10.0)
    assert first.share.held(10.0) == {0, 1}
    first.share.confirm(2)
    assert first.share.held(10.0) == {1}


def test_an_order_is_not_repeated(pair: tuple[Worker, Worker]) -> None:
    first, _ = pair
    first.share.assign([0, 1], 10.0)
    assert len(first.orders) == 1


def test_a_socket_that_nobody_else_holds_is_free() -> None:
    assert available_sockets([0, 1, 2], 1, {0: {0}, 1: {1}}) == [1, 2]
    assert available_sockets([0, 1, 2], 1, {0: {0, 2}}, has=[0]) == [0, 1]


# The first worker takes a second longer than the other.
SLOW = (
    PID
    + """
children = open(f"/proc/{os.getppid()}/task/{os.getppid()}/children").read().split()
if children[0] == str(os.getpid()):
    time.sleep(1)
"""
)


def test_who_was_told_that_the_server_is_ready_is_never_told_otherwise(serve: Serve, tmp_path: Path) -> None:
    """Asked without a pause, for the two hold the sockets together for less than a millisecond."""
    server = serve(write_pid(tmp_path, source=SLOW), "--workers", "2", ready=False)
    said: list[int] = []
    deadline = time.monotonic() + START_S
    while said.count(200) < 50 and time.monotonic() < deadline:
        said.append(server.get("/v2/health/ready").status)
    assert 503 in said
    assert said[said.index(200) :] == [200] * 50


# The load of the first worker holds the interpreter, so that it hears nothing.
DEAF = (
    PID
    + """
children = open(f"/proc/{os.getppid()}/task/{os.getppid()}/children").read().split()
if children[0] == str(os.getpid()):
    import ctypes
    ctypes.PyDLL(None).usleep(2_500_000)
"""
)


def test_who_comes_while_all_stop_and_a_socket_changes_hands_is_answered(serve: Serve, tmp_path: Path) -> None:
    """The one that is ready has not been given the sockets yet, and the other lets go of them as it was told."""
    flags = ("--workers", "2", "--drain-delay-s", "100")
    server = serve(write_pid(tmp_path, source=DEAF), *flags, ready=False)
    server.wait_until(lambda: any(line["event"] == "ready" for line in server.log()), "loaded by one")
    server.process.terminate()
    server.wait_until(lambda: sum(line["event"] == "stopping" for line in server.log()) == 2, "stopping in both")
    assert {server.get("/v2/health/live").status for _ in range(10)} == {200}
    server.process.terminate()  # once more: nobody waits for the delay
    server.process.wait(START_S)


def test_workers_take_connections_for_the_drain_delay_however_idle_one_is(serve: Serve, tmp_path: Path) -> None:
    server = serve(write_pid(tmp_path), "--workers", "2", "--drain-delay-s", "0.2")
    ready = time.monotonic()
    server.wait_until(lambda: time.monotonic() > ready + 1, "idle for longer than the delay")
    server.process.terminate()
    server.process.wait(START_S)
    assert [line["drain_delay_s"] for line in server.log() if line["event"] == "stopping"] == [0.2, 0.2]
