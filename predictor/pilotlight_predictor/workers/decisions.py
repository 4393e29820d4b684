"""The parent's decisions: who accepts from which socket, when a dead worker comes again, what one lacks. Pure."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

FIRST_WAIT_S: Final = 0.1
LONGEST_WAIT_S: Final = 30.0
SETTLED_S: Final = 60.0  # one that lived this long was well: its death is a first one


def shares(sockets: int, ready: Collection[int], alive: Collection[int]) -> dict[int, list[int]]:
    """Worker → its sockets. A worker that is not ready gets none, and others have its socket meanwhile.

    The kernel spreads connections over the sockets whoever accepts from them, so that none waits for a worker that is
    not there. While nobody is ready the lowest has all, to say so.
    """
    holders = sorted(ready) or sorted(alive)[:1]
    given: dict[int, list[int]] = {number: [] for number in alive}
    for number in range(sockets):
        if holders:
            given[number if number in holders else holders[number % len(holders)]].append(number)
    return given


def free(
    wanted: Sequence[int], number: int, held: Mapping[int, Collection[int]], has: Collection[int] = ()
) -> list[int]:
    """Of what worker `number` shall have, what it `has` or nobody else holds; `held` is of those that are not ready."""
    elsewhere = {socket for other, sockets in held.items() if other != number for socket in sockets}
    return [socket for socket in wanted if socket in has or socket not in elsewhere]


def wait_before_restart(deaths: int, lived_s: float) -> tuple[int, float]:
    """Deaths in a row, this one included, and the seconds to wait: 0.1, 0.2, 0.4 … 30."""
    deaths = 1 if lived_s >= SETTLED_S else deaths + 1
    return deaths, min(FIRST_WAIT_S * 2 ** (deaths - 1), LONGEST_WAIT_S)


class Difference(NamedTuple):
    load: tuple[str, ...]
    unload: tuple[str, ...]


def lacks(own: Collection[str], others: Collection[str] | None, calls: Mapping[str, bytes | None]) -> Difference:
    """What makes a newcomer, which serves `own`, serve as the others do.

    `calls` has the last load of each model that an operator loaded, None for one that was unloaded: such a model is
    loaded again although it serves, since the call may have changed its configuration. Without others, the calls tell.
    """
    loaded = {name for name, body in calls.items() if body is not None}
    if others is None:
        others = ({*own} | loaded) - (calls.keys() - loaded)
    wanted = {*others}
    return Difference(tuple(sorted(wanted - ({*own} - loaded))), tuple(sorted({*own} - wanted)))
