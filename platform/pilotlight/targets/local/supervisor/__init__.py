"""Process supervisor of the embedded platform: starts, probes, limits and ends replicas."""

from pilotlight.targets.local.supervisor.replica_record import Launch, Replica, State, Usage
from pilotlight.targets.local.supervisor.supervisor import Supervisor

__all__ = ["Launch", "Replica", "State", "Supervisor", "Usage"]
