"""Planning: plan(service, catalogue, capabilities, current) → Plan. No I/O, no clock, no environment variables."""

from pilotlight.plan.planner import plan

__all__ = ["plan"]
