"""Windows of a log → its lines, each once and in order."""

from collections.abc import Iterator

import pytest

from pilotlight.microservices.registry.records import PlatformStatus
from platformctl.microservice.shared_options import MISSED, follow, new_lines

A, B, C, D = "a", "b", "c", "d"


@pytest.mark.parametrize(
    ("before", "now", "new"),
    [
        ((), (A, B), (A, B)),
        ((A, B), (A, B), ()),
        ((A, B), (A, B, C), (C,)),
        ((A, B, C), (B, C, D), (D,)),
        ((A, A), (A, A, A), (A,)),
        ((A, B), (C, D), None),
        ((A, "be"), (A, "begun", C), ("begun", C)),
        (("a whole line", B, C), ("line", B, C, D), (D,)),
        (("a", ""), (B, C), None),
    ],
)
def test_what_is_new_stands_after_what_was_seen(
    before: tuple[str, ...], now: tuple[str, ...], new: tuple[str, ...] | None
) -> None:
    assert new_lines(before, now) == new


@pytest.mark.parametrize("end", ["failed", "stopped", "gone"])
def test_a_log_goes_on_over_a_platform_that_was_away_and_ends_with_its_microservice(end: str) -> None:
    looks: Iterator[PlatformStatus] = iter(
        [
            PlatformStatus("running", tail=(A, B, C)),
            PlatformStatus("unknown"),
            PlatformStatus("running", tail=(B, C, D)),
            PlatformStatus(end, tail=(C, D, A)),
        ]  # type: ignore[arg-type]
    )
    slept: list[float] = []
    noted: list[str] = []
    assert list(follow(PlatformStatus("pending", tail=(A, B)), lambda: next(looks), 1, noted.append, slept.append)) == [
        B,
        C,
        D,
        A,
    ]
    assert (len(slept), noted) == (4, [])


def test_one_that_has_ended_is_told_and_not_waited_for() -> None:
    assert list(follow(PlatformStatus("failed", tail=(A, B)), lambda: PlatformStatus("running"), 50, str)) == [A, B]


def test_lines_that_nobody_saw_are_owned_up_to() -> None:
    noted: list[str] = []
    looks = iter([PlatformStatus("running", tail=(C, D)), PlatformStatus("gone")])
    assert list(follow(PlatformStatus("running", tail=(A,)), lambda: next(looks), 5, noted.append, lambda _: None)) == [
        A,
        C,
        D,
    ]
    assert noted == [MISSED]
