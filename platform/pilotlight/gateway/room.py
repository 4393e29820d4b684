"""How many bytes of bodies all requests of a plane may keep at a time, whichever service they are for.

A line has a bound for each revision, which is none for a process that serves many. Whoever would have to wait once the
room is full is refused, so that those who wait already are not lost with the process; a short request waits all the
same, since services that others crowd out must still be woken.
"""

from typing import Final

MOST: Final = 1 << 30
SHORT: Final = 1 << 12  # a thousand of them take 4 MiB


class Room:
    __slots__ = ("kept", "most")

    def __init__(self, most: int = MOST) -> None:
        self.kept = 0
        self.most = most

    @property
    def full(self) -> bool:
        return self.kept > self.most

    def refuses(self, kept: int) -> str:
        """Why a request that keeps so many of the bytes may not wait; empty: it may."""
        if not self.full or kept <= SHORT:
            return ""
        return f"requests that wait here take more than {self.most >> 20} MiB already; try again later"
