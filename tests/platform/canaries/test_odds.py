"""Hits of two sides, in one table or several: exact where it can be checked by hand, and never surer than that."""

import math
from fractions import Fraction
from itertools import product

import pytest

from pilotlight.canaries import statistics
from pilotlight.canaries.statistics import ContingencyTable, tail


def law(table: ContingencyTable, times: Fraction) -> dict[int, Fraction]:
    ours, theirs = int(table.total), int(table.other_total)
    every = int(table.hits + table.other_hits)
    weights = {
        k: math.comb(ours, k) * math.comb(theirs, every - k) * times**k
        for k in range(min(ours, every) + 1)
        if every - k <= theirs
    }
    total = sum(weights.values())
    return {k: Fraction(weight) / total for k, weight in weights.items()}


def exact(tables: list[ContingencyTable], times: Fraction) -> float:
    """Every way in which chance may spread the hits, added up as fractions."""
    seen, found = sum(table.hits for table in tables), Fraction(0)
    for drawn in product(*(law(table, times).items() for table in tables)):
        if sum(k for k, _ in drawn) >= seen:
            found += math.prod((chance for _, chance in drawn), start=Fraction(1))
    return float(found)


ONE = [
    [ContingencyTable(8, 10, 2, 10)],
    [ContingencyTable(3, 50, 1, 200)],
    [ContingencyTable(0, 5, 3, 5)],
    [ContingencyTable(5, 5, 0, 90)],
    [ContingencyTable(2, 4, 4, 4)],
]
SEVERAL = [
    [ContingencyTable(1, 5, 0, 95), ContingencyTable(2, 25, 1, 75)],
    [ContingencyTable(2, 10, 3, 40), ContingencyTable(4, 20, 4, 20), ContingencyTable(1, 3, 0, 3)],
    [ContingencyTable(0, 8, 5, 60), ContingencyTable(3, 9, 0, 9)],
]


@pytest.mark.parametrize("times", [Fraction(1), Fraction(6, 5), Fraction(2)])
@pytest.mark.parametrize("tables", [*ONE, *SEVERAL])
def test_the_chance_of_so_many_hits_is_exact(tables: list[ContingencyTable], times: Fraction) -> None:
    assert tail(tables, float(times)) == pytest.approx(exact(tables, times), rel=1e-9)


def test_huge_counts_are_judged_as_quickly_as_small_ones() -> None:
    assert tail([ContingencyTable(5.1e14, 1e15, 5e14, 1e15)]) == pytest.approx(0.0, abs=1e-9)
    assert tail([ContingencyTable(5e14, 1e15, 5e14, 1e15)]) == pytest.approx(0.5, abs=1e-3)
    assert 0.5 < tail([ContingencyTable(5e14, 1e15, 5e14, 1e15)] * 7) < 0.6
    assert tail([ContingencyTable(5.1e14, 1e15, 5e14, 1e15)] * 7) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("harm", [0, 20, 60, 100])
def test_where_many_hits_are_added_up_roughly_nobody_is_surer(harm: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = [ContingencyTable(200 + harm, 1000, 800, 4000), ContingencyTable(500 + harm, 1000, 500, 1000)]
    monkeypatch.setattr(statistics, "MAX_TERMS", 10_000)
    whole = tail(tables)
    monkeypatch.setattr(statistics, "MAX_TERMS", 64)
    rough = tail(tables)
    assert whole <= rough <= max(3 * whole, 0.6)


def test_what_two_times_hint_at_is_proved_by_both_together() -> None:
    first, second = ContingencyTable(6, 100, 20, 2000), ContingencyTable(8, 200, 8, 1000)
    assert tail([first, second]) < tail([first]) * 0.1
    assert tail([first, second]) < tail([second]) * 0.1


def test_a_bad_time_with_a_large_share_is_not_the_canarys_fault() -> None:
    """All added up, 10.9 % of its requests are hits and 6 % of the others': each time by itself tells of no harm."""
    calm, storm = ContingencyTable(1, 100, 19, 1900), ContingencyTable(100, 1000, 100, 1000)
    assert tail([ContingencyTable(101, 1100, 119, 2900)]) < 1e-6
    assert tail([calm, storm]) > 0.4


def test_of_nothing_nothing_is_told() -> None:
    assert tail([]) == 1.0
    assert tail([ContingencyTable(0, 0, 0, 0)]) == 1.0
    assert tail([ContingencyTable(0, 50, 0, 900), ContingencyTable(0, 0, 3, 10)]) == 1.0
