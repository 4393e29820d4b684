"""Deciding: plan(spec, catalogue, capabilities, current) → Plan. No I/O, no clock, no environment."""

from pilotlight.plan.decide import plan

__all__ = ["plan"]
