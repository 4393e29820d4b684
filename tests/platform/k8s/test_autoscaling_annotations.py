"""Values that Knative's webhook takes and refuses; `pkg/apis/autoscaling/annotation_validation.go` has its bounds."""

import pytest

from pilotlight.k8s.autoscaling_annotations import HPA_CLASS, camel, required_value

TAKEN = [
    ("class", HPA_CLASS), ("metric", "rps"), ("metric-aggregation-algorithm", "weightedExponential"),
    ("target", "0.01"), ("target-burst-capacity", "-1"), ("target-burst-capacity", "0"), ("initial-scale", "0"),
    ("window", "6s"), ("window", "1h"), ("scale-down-delay", "0"), ("scale-to-zero-pod-retention-period", "1m5.5s"),
]  # fmt: skip
REFUSED = [
    ("class", "kda.autoscaling.knative.dev", f"one of kpa.autoscaling.knative.dev, {HPA_CLASS}"),
    ("target", "0", "a number of at least 0.01"),
    ("target", "nan", "a number of at least 0.01"),
    ("target-burst-capacity", "-0.5", "a number of at least -1"),
    ("target-utilization-percentage", "120", "a number from 1 to 100"),
    ("initial-scale", "1.5", "a whole number of at least 0"),
    ("activation-scale", "1", "a whole number of at least 2"),
    ("window", "60", "a duration such as 90s from 6s to 3600s, in whole seconds"),
    ("window", "6.5s", "a duration such as 90s from 6s to 3600s, in whole seconds"),
    ("scale-to-zero-pod-retention-period", "1d", "a duration such as 90s from 0s to 3600s"),
]


@pytest.mark.parametrize(("key", "value"), TAKEN)
def test_what_knative_takes_is_taken(key: str, value: str) -> None:
    assert required_value(key, value) == ""


@pytest.mark.parametrize(("key", "value", "required"), REFUSED)
def test_what_knative_refuses_is_answered_with_what_it_must_be(key: str, value: str, required: str) -> None:
    assert required_value(key, value) == required


def test_the_legacy_spelling_is_camel_case() -> None:
    assert (camel("min-scale"), camel("class")) == ("minScale", "class")
