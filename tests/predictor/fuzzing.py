"""What every dialect's fuzzing shares: how examples are made, and what a server must be like after them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from tests.serving import RunningServer

GROWTH = 32 << 20  # bytes that a server may have more after thousands of requests than before
WARM = 200  # requests after which it has what it keeps for good


def fuzz(examples: int, derandomize: bool = True) -> Callable[[Any], Any]:
    """Shrinking would take minutes over a socket; the seed and the example in the failure are enough."""
    return settings(
        max_examples=examples,
        derandomize=derandomize,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


def changed(messages: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """A good message with one byte changed, perhaps cut short, perhaps with something behind it."""

    def change(message: bytes, at: int, byte: int, cut: int, tail: bytes) -> bytes:
        place = at % len(message)
        return (message[:place] + bytes([byte]) + message[place + 1 :])[: 1 + cut % len(message)] + tail

    number = st.integers(0, 1 << 16)
    return st.builds(
        change, st.sampled_from(messages), number, st.integers(0, 255), number, st.just(b"") | st.binary(max_size=12)
    )


@contextmanager
def unshaken(server: RunningServer, warm: Callable[[], Any]) -> Iterator[None]:
    """Nothing inside may make the server grow, log an error or end. `warm` asks it once, as the block will."""
    server.request("GET", "/nowhere", full=True)  # which reads what a quick start left out
    for _ in range(WARM):
        warm()
    before, errors = server.rss_bytes(), len(_errors(server))
    yield
    assert server.process.poll() is None
    assert server.rss_bytes() - before < GROWTH
    assert not (logged := _errors(server)[errors:]), logged


def _errors(server: RunningServer) -> list[dict[str, Any]]:
    return [line for line in server.log() if line["level"] == "ERROR"]
