"""Keepalive of a gRPC server's connection, as gRPC defines it: pings to a silent client, strikes for its own pings.

Pure: times are seconds of the caller's clock. https://github.com/grpc/grpc/blob/master/doc/keepalive.md
"""

from typing import Final, NamedTuple

TOO_MANY_PINGS: Final = "too_many_pings"  # debug data of the GOAWAY, on which clients ping less often
IDLE_INTERVAL_S: Final = 7200.0  # between pings of a client without calls, as of TCP keepalive (RFC 1122, 4.2.3.6)
PING: Final = "ping"
CLOSE: Final = "close"


class KeepalivePolicy(NamedTuple):
    """`time_s`: silence before a ping, 0: none; `timeout_s`: from a ping to the end; `max_strikes` 0: no limit."""

    time_s: float = 0.0
    timeout_s: float = 20.0
    permit_without_calls: bool = False
    min_interval_s: float = 300.0
    max_strikes: int = 0


class Keepalive:
    """Keepalive of one connection. `last_received` is set by the connection when bytes arrive."""

    def __init__(self, policy: KeepalivePolicy, now: float) -> None:
        self._policy = policy
        self.last_received = now
        self._pinged: float | None = None  # while a ping is unanswered
        self._last_ping = float("-inf")  # of the client
        self._strikes = self._progress = 0

    def check(self, now: float, has_calls: bool) -> tuple[str, float]:
        """Return what to do, PING, CLOSE or nothing (empty), and the seconds to the next check."""
        policy = self._policy
        if self._pinged is not None and self.last_received < self._pinged:
            left = self._pinged + policy.timeout_s - now
            return ("", left) if left > 0 else (CLOSE, 0.0)
        self._pinged = None
        left = self.last_received + policy.time_s - now
        if left > 0:
            return "", left
        if not has_calls and not policy.permit_without_calls:
            return "", policy.time_s
        self._pinged = now
        return PING, min(policy.time_s, policy.timeout_s)

    def is_abuse(self, now: float, has_calls: bool, progress: int) -> bool:
        """Count a ping of the client; return whether it is one too many. `progress` grows with all data sent."""
        policy = self._policy
        if progress != self._progress:
            self._progress, self._strikes, self._last_ping = progress, 0, float("-inf")
        idle = not has_calls and not policy.permit_without_calls
        allowed = self._last_ping + (IDLE_INTERVAL_S if idle else policy.min_interval_s)
        self._last_ping = now
        self._strikes += now < allowed
        return 0 < policy.max_strikes < self._strikes
