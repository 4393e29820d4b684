"""KEDA."""

from dataclasses import dataclass

from pilotlight.targets.local.scaling.model import Decision, Hpa, Observed


@dataclass(frozen=True, slots=True)
class Memory:
    at: float


def decide(rules: Hpa, observed: Observed, memory: Memory | None, now: float) -> Decision:
    count = min(max(observed.replicas, rules.min_replicas, 1 if observed.waiting else 0), rules.max_replicas)
    return Decision(count, f"{count}: held", Memory(now), "held")
