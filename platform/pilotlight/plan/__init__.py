"""Deciding: plan(spec, catalogue, capabilities, current) → Plan. No I/O, no clock, no environment."""
