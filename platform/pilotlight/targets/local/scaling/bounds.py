"""Live bounds over what the manifests say: what `scale` asked for stays while revisions come and go."""

from dataclasses import replace

from pilotlight.targets.local.scaling.model import Fixed, Hpa, Kpa, Scaling


def with_bounds(scaling: Scaling, min_replicas: int | None, max_replicas: int | None) -> Scaling:
    """None leaves a bound as it was. Where one bound is given and contradicts the other, the given one wins."""
    if min_replicas is None and max_replicas is None:
        return scaling
    if isinstance(scaling, Fixed):
        return Fixed(_clamped(scaling.replicas, min_replicas, max_replicas))
    if isinstance(scaling, Kpa):
        return _kpa(scaling, min_replicas, max_replicas)
    low, high = _pair(scaling.min_replicas, scaling.max_replicas, min_replicas, max_replicas)
    return _hpa(scaling, low, max(high, 1))


def _clamped(count: int, low: int | None, high: int | None) -> int:
    count = count if low is None else max(count, low)
    return count if high is None else min(count, high)


def _pair(low: int, high: int, new_low: int | None, new_high: int | None) -> tuple[int, int]:
    if new_low is not None:
        low, high = new_low, max(high, new_low)
    if new_high is not None:
        low, high = min(low, new_high), new_high
    return low, high


def _kpa(rules: Kpa, min_replicas: int | None, max_replicas: int | None) -> Kpa:
    """Knative's 0 is no limit, so a maximum of 0 cannot be said here; `activation_scale` stays within both."""
    unlimited = rules.max_scale == 0 and max_replicas is None
    low, high = _pair(rules.min_scale, rules.max_scale or 2**31 - 1, min_replicas, max_replicas or None)
    activation = min(max(rules.activation_scale, low, 1), high)
    return replace(rules, min_scale=low, max_scale=0 if unlimited else high, activation_scale=activation)


def _hpa(rules: Hpa, low: int, high: int) -> Hpa:
    """Only KEDA knows zero. An idle count at or above the minimum would be one that KEDA refuses."""
    low = low if rules.keda else max(1, low)
    idle = rules.idle_replicas if rules.idle_replicas is not None and rules.idle_replicas < low else None
    return replace(rules, min_replicas=low, max_replicas=max(high, low), idle_replicas=idle)
