"""How much is asked of each workload over all replicas of the gateway. Pure bookkeeping: every call is told the time.

Each replica tells the others what it has; a workload that it names is being asked, even when the number is 0 because
its requests are done within the second.
"""

from collections.abc import Collection, Mapping
from typing import Final

Key = tuple[str, str]  # namespace and workload
Loads = Mapping[Key, int]  # requests waiting or in flight
OWN: Final = ""  # this pod, among those who tell
SILENT_S: Final = 3.0  # after this time without a word a replica counts nothing: three of its words are missing


class Demand:
    def __init__(self) -> None:
        self._told: dict[str, tuple[float, Loads]] = {}

    def note(self, sender: str, loads: Loads, now: float) -> None:
        """Replaces what the sender said before."""
        if loads:
            self._told[sender] = (now, loads)
        else:
            self._told.pop(sender, None)

    def keep(self, senders: Collection[str]) -> None:
        """Who is not there any more has nothing."""
        self._told = {name: told for name, told in self._told.items() if name == OWN or name in senders}

    def total(self, key: Key, now: float) -> int:
        return sum(loads.get(key, 0) for at, loads in self._told.values() if now - at < SILENT_S)

    def active(self, key: Key, now: float) -> bool:
        return any(key in loads for at, loads in self._told.values() if now - at < SILENT_S)
