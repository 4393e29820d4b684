"""Decisions of the supervisor: socket assignment, restart backoff, missing models of a new worker. Pure."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

FIRST_WAIT_S: Final = 0.1
LONGEST_WAIT_S: Final = 30.0
SETTLED_S: Final = 60.0  # uptime after which the backoff starts anew


def assign_sockets(sockets: int, ready: Collection[int], alive: Collection[int]) -> dict[int, list[int]]:
    """Return the sockets of each worker. Sockets of workers that are not ready go to ready ones.

    The kernel spreads connections over all listening sockets, whether or not a process accepts from them, so each
    socket needs a worker. While none is ready, the lowest has all sockets, to respond with "not ready".
    """
    holders = sorted(ready) or sorted(alive)[:1]
    assigned: dict[int, list[int]] = {number: [] for number in alive}
    for number in range(sockets):
        if holders:
            assigned[number if number in holders else holders[number % len(holders)]].append(number)
    return assigned


def available_sockets(
    wanted: Sequence[int], number: int, held: Mapping[int, Collection[int]], has: Collection[int] = ()
) -> list[int]:
    """Return the `wanted` sockets that the worker `has` or that no other worker in `held` still accepts from."""
    elsewhere = {socket for other, sockets in held.items() if other != number for socket in sockets}
    return [socket for socket in wanted if socket in has or socket not in elsewhere]


def wait_before_restart(deaths: int, lived_s: float) -> tuple[int, float]:
    """Return the number of exits in a row, including this one, and the backoff in seconds: 0.1, 0.2, 0.4 … 30."""
    deaths = 1 if lived_s >= SETTLED_S else deaths + 1
    return deaths, min(FIRST_WAIT_S * 2 ** (deaths - 1), LONGEST_WAIT_S)


class ModelDifference(NamedTuple):
    load: tuple[str, ...]
    unload: tuple[str, ...]


def missing_models(
    own: Collection[str], others: Collection[str] | None, loads: Mapping[str, bytes | None]
) -> ModelDifference:
    """Return the loads and unloads that make a new worker, which serves `own`, serve what the others do.

    `loads` has the body of the last load of each model loaded through the API, None for an unloaded one. Such a model
    is loaded again even if it is served, since the load may have changed its configuration. Without other workers,
    `loads` alone decide.
    """
    loaded = {name for name, body in loads.items() if body is not None}
    if others is None:
        others = ({*own} | loaded) - (loads.keys() - loaded)
    wanted = {*others}
    return ModelDifference(tuple(sorted(wanted - ({*own} - loaded))), tuple(sorted({*own} - wanted)))
