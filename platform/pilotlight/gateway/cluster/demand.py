"""Demand of each workload over all replicas of the gateway. Pure: the time is an argument.

Each replica broadcasts its loads; a listed workload is active, even with load 0, since its requests may have finished
within the second.
"""

from collections.abc import Collection, Mapping
from typing import Final

WorkloadKey = tuple[str, str]  # namespace and workload
Loads = Mapping[WorkloadKey, int]  # requests waiting or in flight
OWN: Final = ""  # sender name of this pod
STALE_S: Final = 3.0  # a replica without a report for this time counts nothing: three reports are missing


class Demand:
    def __init__(self) -> None:
        self._reports: dict[str, tuple[float, Loads]] = {}

    def record(self, sender: str, loads: Loads, now: float) -> None:
        """Replace the sender's last report."""
        if loads:
            self._reports[sender] = (now, loads)
        else:
            self._reports.pop(sender, None)

    def retain(self, senders: Collection[str]) -> None:
        """Forget the reports of other senders than these."""
        self._reports = {name: report for name, report in self._reports.items() if name == OWN or name in senders}

    def total(self, key: WorkloadKey, now: float) -> int:
        return sum(loads.get(key, 0) for at, loads in self._reports.values() if now - at < STALE_S)

    def active(self, key: WorkloadKey, now: float) -> bool:
        return any(key in loads for at, loads in self._reports.values() if now - at < STALE_S)
