"""What the control process exports of services and canaries, as a real parser reads it."""

from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from pilotlight.canaries.canary_state import Canary, CanaryHistory, Measurement
from pilotlight.observability import control_metrics
from pilotlight.spec.canary_policy import CanaryPolicy, Check
from pilotlight.targets.target import RevisionStatus, ServiceStatus
from pilotlight.wire.prometheus_text import Family, render_families

KEY = ("lab", "iris")
CANARY = Canary(
    CanaryPolicy(checks=(Check("p99_ms", maximum=300.0),)), "iris-2", "iris-1", 2, 1, "2026-01-01T00:00:00Z", weight=25
)


def read(made: list[Family]) -> dict[tuple[str, ...], float]:
    """By name and the values of its labels."""
    found = {}
    for family in text_string_to_metric_families(render_families(made)):
        for sample in family.samples:
            found[sample.name, *sample.labels.values()] = sample.value
    return found


def service(row: RevisionStatus) -> ServiceStatus:
    return ServiceStatus(*KEY, 1, "Ready", "", revisions=(row,))


def test_replicas_are_told_by_state() -> None:
    found = read([control_metrics.replicas([service(RevisionStatus("iris-1", "iris", "predictor", 100, (), 2, 1, 3))])])
    told = {labels[-1]: value for labels, value in found.items()}
    assert told == {"desired": 3, "starting": 1, "ready": 2, "failed": 0}
    assert ("pilotlight_replicas", "lab", "iris", "iris", "iris-1", "ready") in found


def test_a_model_that_cannot_be_loaded_counts_as_failed_even_while_nothing_runs() -> None:
    row = RevisionStatus("iris-1", "iris", "predictor", 100, model_state="FailedToLoad")
    found = read([control_metrics.replicas([service(row)])])
    assert [value for labels, value in found.items() if labels[-1] == "failed"] == [1]


def test_a_canary_tells_its_weights_its_phase_and_what_was_measured_last() -> None:
    measured = (
        Measurement("p99_ms", "2026-01-01T00:00:15Z", "Successful", 120.0),
        Measurement("p99_ms", "2026-01-01T00:00:30Z", "Failed", 340.0, 110.0),
    )
    found = read(control_metrics.canaries([(KEY, CanaryHistory(replace(CANARY, measurements=measured)))]))
    assert found["pilotlight_canary_weight", *KEY, "iris-2", "canary"] == 25
    assert found["pilotlight_canary_weight", *KEY, "iris-1", "stable"] == 75
    assert found["pilotlight_canary_check_value", *KEY, "iris-2", "canary", "p99_ms"] == 340
    assert found["pilotlight_canary_check_value", *KEY, "iris-1", "stable", "p99_ms"] == 110
    assert found["pilotlight_canary_phase", *KEY, "iris-2", "Progressing"] == 1
    assert found["pilotlight_canary_phase", *KEY, "iris-2", "RolledBack"] == 0


def test_how_a_canary_ended_and_why_is_remembered_while_its_shares_are_over() -> None:
    measured = (Measurement("p99_ms", "2026-01-01T00:00:30Z", "Failed", 340.0),)
    found = read(
        control_metrics.canaries([(KEY, CanaryHistory(replace(CANARY, phase="RolledBack", measurements=measured)))])
    )
    assert {labels[0] for labels in found} == {"pilotlight_canary_phase", "pilotlight_canary_check_value"}
    assert found["pilotlight_canary_phase", *KEY, "iris-2", "RolledBack"] == 1
    assert found["pilotlight_canary_check_value", *KEY, "iris-2", "canary", "p99_ms"] == 340


def test_a_canary_that_a_newer_release_made_pointless_is_told_no_more() -> None:
    ledgers = [(KEY, CanaryHistory(replace(CANARY, phase="Superseded"))), (("lab", "none"), CanaryHistory())]
    assert read(control_metrics.canaries(ledgers)) == {}


def test_a_name_cannot_break_out_of_its_label_and_odd_numbers_are_written_as_prometheus_reads_them() -> None:
    family = Family("a", "gauge", "help")
    family.add(float("nan"), name='x"} 1\nb\\')
    family.add(float("inf"), name="y")
    (read_back,) = text_string_to_metric_families(render_families([family]))
    assert read_back.samples[0].labels == {"name": 'x"} 1\nb\\'}
    assert read_back.samples[0].value != read_back.samples[0].value
    assert read_back.samples[1].value == float("inf")
