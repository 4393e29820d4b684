"""Starts, watches, limits and ends the processes of the embedded platform; `Supervisor` is all that others see."""

from pilotlight.targets.local.supervisor.replica import Launch, Replica, State, Usage
from pilotlight.targets.local.supervisor.supervisor import Supervisor

__all__ = ["Launch", "Replica", "State", "Supervisor", "Usage"]
