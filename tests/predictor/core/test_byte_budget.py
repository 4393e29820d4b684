"""The byte budget: refusals, and free memory that returns to the system."""

import resource
from pathlib import Path
from threading import Event

import pytest

from pilotlight_predictor.core import byte_budget
from pilotlight_predictor.core.byte_budget import ByteBudget
from pilotlight_predictor.errors import QueueFull

MIB = 1 << 20


def test_what_does_not_fit_is_refused_and_leaves_no_trace() -> None:
    budget = ByteBudget(100)
    with budget.hold(90):
        assert (budget.left, budget.scarce, budget.reserve(11)) == (10, True, None)
        with pytest.raises(QueueFull, match=r"hold 90 bytes of 100 \(--max-bytes-in-flight\), 11 more do not fit"):
            budget.take(11)
        assert budget.reserve(10) == 10
    assert budget.bytes_in_flight == 10


def test_free_memory_returns_to_the_system_only_after_it_was_scarce(monkeypatch: pytest.MonkeyPatch) -> None:
    trimmed = Event()
    monkeypatch.setattr(byte_budget, "trim", trimmed.set)
    budget = ByteBudget(64 * MIB)
    for _ in range(40):
        with budget.hold(30 * MIB):
            pass
    assert not trimmed.wait(0.01)
    with budget.hold(30 * MIB), budget.hold(3 * MIB):
        pass
    assert trimmed.wait(60)


def test_malloc_returns_memory() -> None:
    """200 MB below a block that stays: free() alone keeps their pages."""

    def rss_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    blocks = [bytes(4000) for _ in range(50_000)]
    last = blocks.pop()
    blocks.clear()
    before = rss_bytes()
    byte_budget.trim()
    assert before - rss_bytes() > 100 * MIB
    assert last
