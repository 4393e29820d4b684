"""What leaves a connection of HTTP/2: never more than windows, frames and socket take, and nothing is lost."""

from pilotlight.wire.http2 import frames as http2_frames
from pilotlight.wire.http2.streams import BURST, Http2Stream, SendBuffer


def made() -> tuple[SendBuffer, list[int]]:
    over: list[int] = []
    return SendBuffer(lambda stream: over.append(stream.number)), over


def stream(out: SendBuffer, number: int = 1) -> Http2Stream:
    return Http2Stream(number, out.initial_window, 0, ended=True)


def data_of(out: SendBuffer, number: int = 1) -> list[int]:
    """The lengths of DATA frames that were to be written."""
    text, at, found = b"".join(out.take_frames()), 0, []
    while at < len(text):
        word, _, of = http2_frames.HEAD.unpack_from(text, at)
        if word & 0xFF == http2_frames.DATA and of == number:
            found.append(word >> 8)
        at += http2_frames.HEAD_LENGTH + (word >> 8)
    return found


def test_data_is_cut_into_frames_and_waits_for_the_windows() -> None:
    out, over = made()
    one = stream(out)
    out.data(one, bytes(100_000))
    out.end(one, b"\x88")
    assert data_of(out) == [16384, 16384, 16384, 16383]
    out.increase_window(1 << 20)
    assert data_of(out) == []
    out.increase_stream_window(one, 30_000)
    assert data_of(out) == [16384, 13616]
    assert over == []
    out.increase_stream_window(one, 10_000)
    assert sum(data_of(out)) == 100_000 - 65_535 - 30_000
    assert over == [1]


def test_streams_that_wait_take_turns() -> None:
    out, _ = made()
    first, second = stream(out, 1), stream(out, 3)
    out.window = 0
    out.data(first, bytes(50_000))
    out.data(second, bytes(50_000))
    out.increase_window(40_000)
    frames = b"".join(out.take_frames())
    assert abs(first.window - second.window) <= 16384
    assert len(frames) > 40_000


def test_an_initial_window_that_changes_counts_for_open_streams() -> None:
    out, _ = made()
    one = stream(out)
    out.set_initial_window(10, [one])
    out.data(one, bytes(25))
    assert data_of(out) == [10]
    out.set_initial_window(0, [one])
    assert one.window == -10
    out.set_initial_window(20, [one])
    assert data_of(out) == [10]
    out.set_initial_window(100, [one])
    assert data_of(out) == [5]


def test_a_socket_that_takes_no_more_holds_data_back() -> None:
    out, _ = made()
    out.window = out.initial_window = http2_frames.UINT31_MAX
    one = stream(out)
    out.paused = True
    out.data(one, b"x")
    assert data_of(out) == []
    out.paused = False
    out.pump()
    assert data_of(out) == [1]


def test_no_more_is_handed_out_at_once_than_a_burst() -> None:
    out, _ = made()
    out.window = out.initial_window = http2_frames.UINT31_MAX
    one = stream(out)
    out.data(one, bytes(3 * BURST))
    assert BURST <= sum(data_of(out)) < 2 * BURST
    out.pump()
    out.pump()
    assert sum(data_of(out)) >= BURST


class Counted(Http2Stream):
    """Counts how often its window is looked at."""

    looks = 0

    @property
    def window(self) -> int:  # type: ignore[override]
        Counted.looks += 1
        return self._window

    @window.setter
    def window(self, value: int) -> None:
        self._window = value


def waiting(out: SendBuffer, count: int) -> list[Http2Stream]:
    made = [Counted(number, out.initial_window, 0, ended=True) for number in range(1, 2 * count, 2)]
    for each in made:
        out.data(each, bytes(100))
    Counted.looks = 0
    return made


def test_a_window_that_grows_costs_the_same_however_many_streams_are_shut() -> None:
    out, _ = made()
    out.initial_window = 0
    streams = waiting(out, 1000)
    out.increase_window(1)
    assert Counted.looks == 0
    out.increase_stream_window(streams[500], 100)
    assert Counted.looks < 10
    assert data_of(out, streams[500].number) == [100]


def test_a_connection_that_grows_by_a_byte_costs_the_same_however_many_streams_wait_for_it() -> None:
    out, _ = made()
    out.window = 0
    streams = waiting(out, 1000)
    out.increase_window(1)
    assert Counted.looks < 10
    assert data_of(out) == [1]
    out.increase_window(1)
    out.increase_window(1)
    assert (data_of(out, 1), streams[1].window, streams[2].window) == ([], 65_534, 65_534)
