"""Replica bounds set by `platformctl scale`, applied over those of the manifests."""

from dataclasses import replace

from pilotlight.targets.local.scaling.model import Fixed, Hpa, Kpa, Scaling


def with_bounds(scaling: Scaling, min_replicas: int | None, max_replicas: int | None) -> Scaling:
    """Return the rules with new bounds; None leaves a bound. A given bound wins over the other if they conflict."""
    if min_replicas is None and max_replicas is None:
        return scaling
    if isinstance(scaling, Fixed):
        count = scaling.replicas if min_replicas is None else max(scaling.replicas, min_replicas)
        return Fixed(count if max_replicas is None else min(count, max_replicas))
    if isinstance(scaling, Kpa):
        return _kpa(scaling, min_replicas, max_replicas)
    low, high = _merge_bounds(scaling.min_replicas, scaling.max_replicas, min_replicas, max_replicas)
    return _hpa(scaling, low, max(high, 1))


def _merge_bounds(low: int, high: int, new_low: int | None, new_high: int | None) -> tuple[int, int]:
    if new_low is not None:
        low, high = new_low, max(high, new_low)
    if new_high is not None:
        low, high = min(low, new_high), new_high
    return low, high


def _kpa(rules: Kpa, min_replicas: int | None, max_replicas: int | None) -> Kpa:
    """Clamp Knative's bounds and `activation_scale`. A max_scale of 0 means no limit, so a maximum of 0 is ignored."""
    unlimited = rules.max_scale == 0 and max_replicas is None
    low, high = _merge_bounds(rules.min_scale, rules.max_scale or 2**31 - 1, min_replicas, max_replicas or None)
    activation = min(max(rules.activation_scale, low, 1), high)
    return replace(rules, min_scale=low, max_scale=0 if unlimited else high, activation_scale=activation)


def _hpa(rules: Hpa, low: int, high: int) -> Hpa:
    """Clamp an HPA's bounds: only KEDA allows a minimum of 0; idleReplicaCount must stay below the minimum."""
    low = low if rules.keda else max(1, low)
    idle = rules.idle_replicas if rules.idle_replicas is not None and rules.idle_replicas < low else None
    return replace(rules, min_replicas=low, max_replicas=max(high, low), idle_replicas=idle)
