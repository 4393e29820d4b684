"""Metrics that models make: names that nobody else has, series that live as long as somebody counts in them."""

import gc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pilotlight_predictor.backends.python.triton import pb_utils
from pilotlight_predictor.metrics import Histogram, Metrics
from pilotlight_predictor.metrics import custom as metrics_custom
from pilotlight_predictor.metrics.collector import collect
from pilotlight_predictor.metrics.custom import CustomMetrics
from pilotlight_predictor.metrics.exposition import expose


class Model:
    """A loaded one, as far as metrics are concerned."""

    def __init__(self, custom: CustomMetrics) -> None:
        self.calls, self.custom_metrics = self, custom


@pytest.fixture
def custom() -> CustomMetrics:
    return CustomMetrics()


@pytest.fixture
def families(custom: CustomMetrics) -> type[pb_utils.MetricFamily]:
    return type("MetricFamily", (pb_utils.MetricFamily,), {"bls": Model(custom)})


def values(custom: CustomMetrics) -> dict[str, list[Any]]:
    return {family.metric.name: [sample.value for sample in family.samples] for family in custom.collect()}


def test_a_scrape_ends_with_them() -> None:
    metrics = Metrics()
    family = metrics.custom.family("frames_seen", "counter", "Frames")
    series = metrics.custom.series("model", family, {"camera": "door"})
    series.add(3)
    text = expose(collect(metrics)).decode()
    assert text.endswith('# HELP frames_seen Frames\n# TYPE frames_seen counter\nframes_seen{camera="door"} 3.0\n')


def test_two_that_make_the_same_count_together(custom: CustomMetrics, families: Any) -> None:
    one = families("a", "A", families.COUNTER).Metric({"x": "1", "y": "2"})
    two = families("a", "A", families.COUNTER).Metric({"y": "2", "x": "1"})
    one.increment(1)
    two.increment(2.5)
    assert values(custom) == {"a": [3.5]}
    assert one.value() == two.value() == 3.5


def test_what_nobody_holds_any_more_is_gone(custom: CustomMetrics, families: Any) -> None:
    family = families("a", "A", families.GAUGE)
    kept, dropped = family.Metric({"x": "1"}), family.Metric({"x": "2"})
    kept.set(1)
    dropped.set(2)
    del dropped, family
    gc.collect()
    assert values(custom) == {"a": [1.0]}
    del kept
    gc.collect()
    assert values(custom) == {}
    assert families("a", "now a counter", families.COUNTER)


def test_what_an_unloaded_model_alone_counted_is_gone_whoever_holds_it(custom: CustomMetrics) -> None:
    models = [Model(custom), Model(custom)]
    families: list[Any] = [type("MetricFamily", (pb_utils.MetricFamily,), {"bls": each}) for each in models]
    both = [each("both", "", each.GAUGE).Metric() for each in families]
    alone = families[0]("alone", "", families[0].GAUGE).Metric()
    custom.remove_owner(models[0])
    assert list(values(custom)) == ["both"]
    custom.remove_owner(models[1])
    assert values(custom) == {}
    assert (both[0].value(), alone.value()) == (0.0, 0.0)


def test_a_version_with_other_buckets_takes_the_place_of_the_one_before(custom: CustomMetrics, families: Any) -> None:
    before = families("b", "B", families.HISTOGRAM).Metric(buckets=[1, 2])
    after = families("b", "B", families.HISTOGRAM).Metric(buckets=[10, 20])
    before.observe(1)
    after.observe(15)
    (found,) = values(custom)["b"]
    assert (found.bounds, found.counts) == ((10.0, 20.0), [0, 1, 0])


def test_nothing_is_lost_between_threads(custom: CustomMetrics, families: Any) -> None:
    counter = families("a", "A", families.COUNTER).Metric()
    sizes = families("b", "B", families.HISTOGRAM).Metric(buckets=[1, 2])

    def count(_: int) -> None:
        for _ in range(2000):
            counter.increment(1)
            sizes.observe(1.5)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(count, range(8)))
    found = values(custom)
    assert found["a"] == [16000.0]
    (histogram,) = found["b"]
    assert isinstance(histogram, Histogram)
    assert (histogram.counts, histogram.sum) == ([0, 16000, 0], 24000.0)


def test_a_scrape_is_of_one_moment(custom: CustomMetrics, families: Any) -> None:
    sizes = families("b", "B", families.HISTOGRAM).Metric(buckets=[1])
    (before,) = values(custom)["b"]
    sizes.observe(5)
    assert before.counts == [0, 0]


@pytest.mark.parametrize(
    ("name", "kind", "told"),
    [
        ("2nd", "counter", "must be letters, digits, _ and :"),
        ("a b", "counter", "must be letters, digits, _ and :"),
        ("nv_inference_count", "counter", "which is already in use"),
        ("pilotlight_request_duration_seconds_count", "gauge", "which is already in use"),
        ("taken_sum", "gauge", "which is already in use"),
        ("taken", "gauge", "the metric taken is already a histogram, a gauge needs another name"),
    ],
)
def test_a_name_that_cannot_be_had_is_told(custom: CustomMetrics, name: str, kind: Any, told: str) -> None:
    taken = custom.family("taken", "histogram", "")
    with pytest.raises(ValueError, match=told):
        custom.family(name, kind, "")
    assert taken.kind == "histogram"


def test_a_histogram_cannot_take_the_lines_of_another(custom: CustomMetrics) -> None:
    kept = custom.family("taken_sum", "gauge", "")
    with pytest.raises(ValueError, match="which is already in use"):
        custom.family("taken", "histogram", "")
    assert kept


def test_labels_are_few_and_plain(custom: CustomMetrics, families: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    family = families("a", "A", families.GAUGE)
    for labels in ({"le": "1"}, {"__x": "1"}, {"a-b": "1"}, {"a": 1}):
        with pytest.raises(pb_utils.TritonModelException, match=r"of metric a|metric a has the label"):
            family.Metric(labels)
    monkeypatch.setattr(metrics_custom, "MAX_SERIES", 3)
    made = [family.Metric({"n": str(number)}) for number in range(3)]
    with pytest.raises(pb_utils.TritonModelException, match="models have 3 series"):
        family.Metric({"n": "3"})
    assert family.Metric({"n": "1"}).value() == made[1].value()


def test_each_kind_does_what_it_can(families: Any) -> None:
    counter = families("a", "A", families.COUNTER).Metric()
    gauge = families("b", "B", families.GAUGE).Metric()
    histogram = families("c", "C", families.HISTOGRAM).Metric(buckets=[1])
    gauge.increment(-2)
    assert gauge.value() == -2
    for wrong in (
        lambda: counter.set(1), lambda: counter.increment(-1), lambda: counter.observe(1), lambda: gauge.observe(1),
        lambda: histogram.increment(1), lambda: histogram.set(1), histogram.value, lambda: gauge.set(float("nan")),
        lambda: families("c", "C", families.HISTOGRAM).Metric(), lambda: families("x", "X", 7),
        lambda: families("d", "D", families.HISTOGRAM).Metric(buckets=[2, 1]),
        lambda: families("e", "E", families.GAUGE).Metric(buckets=[1]),
    ):  # fmt: skip
        with pytest.raises(pb_utils.TritonModelException):
            wrong()


def test_there_are_none_without_a_server() -> None:
    with pytest.raises(pb_utils.TritonModelException, match=r"only by a model\.py that a server has loaded"):
        pb_utils.MetricFamily("a", "A", pb_utils.MetricFamily.COUNTER)
    for call in (
        lambda: pb_utils.load_model("a"),
        lambda: pb_utils.unload_model("a"),
        lambda: pb_utils.is_model_ready("a"),
    ):
        with pytest.raises(pb_utils.TritonModelException, match=r"only by a model\.py that a server has loaded"):
            call()


def test_a_description_is_text(custom: CustomMetrics) -> None:
    with pytest.raises(ValueError, match="the description of metric a is NoneType, must be text"):
        custom.family("a", "gauge", None)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["[1]", "{", 5, {"a": [1]}, {"a": None}, {1: "a"}, {"a": 2**63}, {"a": float("nan")}])
def test_parameters_of_a_response_are_a_map_of_plain_values(wrong: Any) -> None:
    with pytest.raises(pb_utils.TritonModelException, match="of a response"):
        pb_utils.InferenceResponse([], parameters=wrong)


def test_parameters_of_a_response_are_told_as_json() -> None:
    assert pb_utils.InferenceResponse([], parameters={"a": 1}).parameters() == '{"a": 1}'
    assert pb_utils.InferenceResponse([], parameters='{"a": 1}').parameters() == '{"a": 1}'
    assert pb_utils.InferenceResponse([]).parameters() == ""
