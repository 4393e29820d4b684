"""When a call between models would wait for ever."""

from collections.abc import Mapping

import pytest

from pilotlight_predictor.backends.base import VersionId
from pilotlight_predictor.models.bls import DeadlockDetector, VersionCapacity

A, B, C, E = (VersionId(name, 1) for name in "ABCE")
Calls = list[tuple[VersionId, int, VersionId]]


def refused(calls: Calls, shapes: Mapping[VersionId, VersionCapacity]) -> list[int]:
    waits = DeadlockDetector()
    made = [waits.begin(caller, thread, target, lambda version: shapes[version]) for caller, thread, target in calls]
    return [index for index, ok in enumerate(made) if not ok]


ONE = {A: VersionCapacity(1), B: VersionCapacity(1), C: VersionCapacity(1)}


@pytest.mark.parametrize(
    ("calls", "shapes", "expected"),
    [
        ([(A, 1, B)], ONE, []),
        ([(A, 1, A)], ONE, [0]),
        ([(A, 1, A), (A, 2, A)], {A: VersionCapacity(2)}, [1]),  # the second instance was the first one's last hope
        ([(A, 1, B), (B, 2, A)], ONE, [1]),
        ([(A, 1, B), (B, 2, C), (C, 3, A)], ONE, [2]),
        ([(A, 1, B), (B, 2, A)], {A: VersionCapacity(2), B: VersionCapacity(1)}, []),
        ([(A, 1, B), (B, 2, A), (A, 3, B)], {A: VersionCapacity(2), B: VersionCapacity(1)}, [2]),
        ([(A, 1, B), (A, 1, C), (C, 2, A)], ONE, [2]),  # an instance that waits for two needs both
        ([(A, 1, E)], {**ONE, E: VersionCapacity(0, (B, C))}, []),
        ([(A, 1, E)], {**ONE, E: VersionCapacity(0, (B, A))}, [0]),  # an ensemble with the caller in it
        ([(A, 1, B), (C, 2, B)], ONE, []),  # two callers of one model only queue
    ],
)
def test_a_call_is_refused_where_nobody_could_get_on(
    calls: Calls, shapes: Mapping[VersionId, VersionCapacity], expected: list[int]
) -> None:
    assert refused(calls, shapes) == expected


def test_a_wait_that_is_over_stands_in_nobodys_way() -> None:
    waits = DeadlockDetector()
    assert waits.begin(A, 1, B, ONE.__getitem__)
    waits.end(A, 1, B)
    assert waits.begin(B, 2, A, ONE.__getitem__)
    assert not waits.begin(A, 1, B, ONE.__getitem__)
