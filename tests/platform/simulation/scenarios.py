"""Scenarios and traces that tests of the simulation share."""

from typing import Any

import numpy as np

from pilotlight.simulation.scenario import Scenario
from pilotlight.simulation.service_times import Profile, ServiceTimes
from pilotlight.simulation.trace import Trace
from pilotlight.targets.local.scaling.types import Fixed, Kpa, Scaling


def scenario(scaling: Scaling | None = None, **fields: Any) -> Scenario:
    """Return a scenario without limits, on the embedded platform."""
    free = {"queue_limit": 0, "hold_s": 1e9, "timeout_s": 1e9, "hold_limit": 10**9}
    return Scenario("iris", "default", "serverless", scaling or Fixed(1), **{**free, **fields})


def kpa(**fields: Any) -> Kpa:
    return Kpa(**{"grace_s": 0.0, "target": 2.0, "container_concurrency": 2, **fields})


def poisson(rate: float, requests: int, seed: int = 1, services: np.ndarray | None = None) -> Trace:
    arrivals = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, requests))
    return Trace(arrivals, services)


def constant(seconds: float, parallel: int = 1, cold_start: float = 2.0) -> Profile:
    return Profile(ServiceTimes((seconds,), parallel)).with_cold_start("process", cold_start)
